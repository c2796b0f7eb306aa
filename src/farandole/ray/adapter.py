"""The interface that a `RayExecutor` delegates to. One class implements it for fixed jobs, one for elastic jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Adapter(Protocol):
    """Starts workers, and runs functions on them, as the methods of `RayExecutor` describe."""

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers."""

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Run `fn(object)` on all workers."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """Run `fn(*args, **kwargs)` on all workers."""

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Run `fn(*args, **kwargs)` on all workers, and return references to the values."""

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Run `fn(object)` on rank 0."""

    def shutdown(self) -> None:
        """End the workers."""
