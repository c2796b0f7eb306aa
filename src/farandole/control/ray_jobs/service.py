"""The place `ray`: carries out job commands through the REST interface of Ray Jobs.

The name of a job is its id in Ray, which Ray accepts only once. So a submission whose answer is lost can be repeated
under the same name, and does not run twice. Ray remembers the jobs, and nothing is stored here.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from farandole.base.wire.encoding import format_json
from farandole.control.jobs import refusals
from farandole.control.jobs.errors import NotAllowed, Refused, UnknownJob, Unreachable
from farandole.control.jobs.log_lines import of_rank
from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobStatus
from farandole.control.ray_jobs.request import request_of, status_of

ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
_ADDRESS = "http://127.0.0.1:8265"
_ANSWER_SECONDS = 30.0
# Each request for a log brings all of it.
_POLL_SECONDS = 1.0


class RayJobs:
    """The jobs of farandole on a Ray cluster.

    Args:
        address: the address of Ray's dashboard, such as http://head:8265.
        token: the token that Ray requires; "": none.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address.rstrip("/")
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}

    def submit(self, spec: JobSpec) -> str:
        """Submit a job."""
        if not spec.name:
            spec = msgspec.structs.replace(spec, name=f"job-{secrets.token_hex(3)}")
        body = request_of(spec)
        self._make_room(spec.name)
        try:
            self._call("POST", "", body)
        except Unreachable as error:
            raise Unreachable(
                f"{error.message}: it is not known whether Ray has accepted job {spec.name}",
                f"check with: farandole status {spec.name} --on ray; submitted again under this name, it does not run "
                "twice",
            ) from None
        return spec.name

    def _make_room(self, name: str) -> None:
        """Remove an earlier job of this name that is over.

        Raises:
            Refused: it is not over.
        """
        try:
            status = self.status(name)
        except UnknownJob:
            return
        if not status.state.is_over:
            raise Refused(f"job {name} already exists: it {status.state.in_words}", "use another name: --name NAME")
        self._call("DELETE", name)

    def preview(self, spec: JobSpec) -> str:
        """Return the request that would be sent. A job without a name gets one when it is submitted."""
        return format_json(request_of(spec if spec.name else msgspec.structs.replace(spec, name="job"))) + "\n"

    def jobs(self) -> Sequence[JobStatus]:
        """Return all jobs of farandole that Ray remembers, oldest first."""
        found = [status for job in self._call("GET", "") if (status := status_of(job)) is not None]
        return sorted(found, key=lambda status: status.created or 0.0)

    def status(self, name: str) -> JobStatus:
        """Return the state of a job."""
        status = status_of(self._call("GET", name))
        if status is None:
            raise UnknownJob(f"job {name} of Ray was not submitted by farandole", "farandole jobs --on ray")
        return status

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the output of the job."""
        return of_rank(self._lines(name, follow), rank)

    def _lines(self, name: str, follow: bool) -> Iterator[str]:
        seen = 0
        while True:
            # Checked before reading: everything written until then is in the log.
            over = self.status(name).state.is_over or not follow
            text = self._call("GET", f"{name}/logs").get("logs") or ""
            new = text[seen:] if over else text[seen : text.rfind("\n") + 1]
            seen += len(new)
            yield from (line + "\n" for line in new.removesuffix("\n").split("\n") if new)
            if over:
                return
            time.sleep(_POLL_SECONDS)

    def cancel(self, name: str) -> None:
        """End a job gracefully: Ray kills it if it does not end within its grace."""
        status = self.status(name)
        if status.state.is_over:
            raise refusals.is_over(name, status.state)
        self._call("POST", f"{name}/stop")

    def scale(self, name: str, workers: int) -> None:
        """Refuse: Ray's interface has no such request.

        Raises:
            Refused: always.
        """
        self._refuse(name, "changed in size", "submit it with -np MIN:MAX, so that it follows the nodes of the cluster")

    def suspend(self, name: str) -> None:
        """Refuse: Ray's interface has no such request.

        Raises:
            Refused: always.
        """
        self._refuse(name, "suspended", "farandole cancel ends it; with --checkpoint, it resumes when submitted again")

    def resume(self, name: str) -> None:
        """Refuse: no job is ever suspended here.

        Raises:
            Refused: always.
        """
        raise refusals.is_not_suspended(name, self.status(name).state)

    def _refuse(self, name: str, what: str, hint: str) -> NoReturn:
        self.status(name)
        raise Refused(f"job {name} cannot be {what}: Ray's jobs have no such request", hint)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request about jobs, and return the answer as plain data.

        Raises:
            Unreachable: there is no answer.
            UnknownJob: there is no such job.
            NotAllowed: Ray does not accept the token.
            Refused: Ray rejects the request.
        """
        data = None if body is None else json.dumps(body).encode()
        url = f"{self._address}/api/jobs/{urllib.parse.quote(path)}"
        try:
            asked = urllib.request.Request(url, data, self._headers, method=method)
            with urllib.request.urlopen(asked, timeout=_ANSWER_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise self._error_of(error, path.partition("/")[0]) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            raise Unreachable(
                f"Ray does not answer at {self._address}: {why}",
                f"set {ADDRESS_VARIABLE} to the address of the cluster's dashboard, such as http://head:8265",
            ) from None

    def _error_of(self, error: urllib.error.HTTPError, name: str) -> Exception:
        if error.code == 404 and name:
            return UnknownJob(f"there is no job {name} on the Ray cluster", "farandole jobs --on ray")
        if error.code in (401, 403):
            return NotAllowed("Ray does not accept the token", "set RAY_AUTH_TOKEN to that of the cluster")
        said = error.read().decode(errors="replace").strip().splitlines()
        return Refused(f"Ray refuses the request: {said[-1] if said else error.reason}")


def connect(environment: Mapping[str, str]) -> RayJobs:
    """Return the service of the cluster that the environment names, or of the one on this machine."""
    named = environment.get(ADDRESS_VARIABLE) or environment.get("RAY_ADDRESS", "")
    address = named if named.startswith(("http://", "https://")) else _ADDRESS
    return RayJobs(address, _token(environment))


def _token(environment: Mapping[str, str]) -> str:
    """Return this user's token for Ray, from the places where Ray's own client looks for it; "": there is none."""
    if given := environment.get("RAY_AUTH_TOKEN"):
        return given
    path = environment.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
