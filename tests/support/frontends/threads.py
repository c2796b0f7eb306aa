"""Calls of front ends without handles, which run in threads: each occupies one until it is done."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from frontends.front_end import Call, FrontEnd

MOST_CALLS = 100


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_CALLS)


class Threads(FrontEnd):
    """A mixin for front ends whose calls all wait for their result."""

    def begin(self, method: str, tensor: Any, **how: Any) -> Any:
        return _threads().submit(getattr(self.hvd, method), tensor, **how)

    def finish(self, call: Future[Any]) -> Any:
        return call.result()

    def at_once(self, calls: Sequence[Call]) -> list[Any]:
        # Threads start in random order, so ranks can match calls only by names.
        begun = [
            self.begin(method, tensor, **{"name": f"at.once.{number}", **how})
            for number, (method, tensor, how) in enumerate(calls)
        ]
        return [self.finish(call) for call in begun]
