"""The blocking client of the API server, for job commands and launcher pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
from lightkube.config.client_adapter import Client, ConnectionParams
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError

from farandole.control.kubernetes.api.client import encoded, no_answer, read_answer, refusal
from farandole.control.kubernetes.model import Object


class BlockingApi:
    """A connection to one API server.

    Args:
        client: an httpx2 client with the server's address and this user's credentials.
    """

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    @classmethod
    def connect(cls, config: SingleConfig, seconds: float) -> BlockingApi:
        """Return a connection.

        Args:
            config: address and credentials of the cluster.
            seconds: timeout of an answer.
        """
        return cls(Client(config, ConnectionParams(timeout=httpx2.Timeout(seconds))))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def send(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        parameters: Mapping[str, str] | None = None,
        content: str = "application/json",
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send one request, and return the answer.

        Args:
            seconds: timeout of the answer; None for the default.

        Raises:
            ApiError: the API server refused, or could not be reached.
        """
        data, headers = encoded(body, content)
        timeout = httpx2.USE_CLIENT_DEFAULT if seconds is None else httpx2.Timeout(seconds)
        try:
            answer = self._client.request(
                method, path, content=data, params=parameters, headers=headers, timeout=timeout
            )
        except (httpx2.HTTPError, ConfigError, OSError) as error:
            raise no_answer(method, path, error) from error
        return read_answer(answer)

    def lines(self, path: str, parameters: Mapping[str, str], seconds: float, silence: float) -> Iterator[str]:
        """Yield the lines of an answer as they arrive.

        Args:
            seconds: timeout of the connection.
            silence: timeout of each line, in seconds.

        Raises:
            ApiError: the server refused, or the connection broke.
        """
        timeout = httpx2.Timeout(seconds, read=silence)
        try:
            with self._client.stream("GET", path, params=parameters, timeout=timeout) as answer:
                if answer.status_code >= 300:
                    answer.read()
                    raise refusal(answer)
                yield from answer.iter_lines()
        except (httpx2.HTTPError, ConfigError, OSError) as error:
            raise no_answer("GET", path, error) from error
