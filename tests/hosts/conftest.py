"""The fixture `hosts`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.hosts.bed import Bed, why_not


@pytest.fixture
def hosts() -> Iterator[Callable[..., Bed]]:
    """Return a function that creates a bed from the arguments of `Bed`. The bed is removed when the test ends."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as beds:

        def hosts(count: int, **options: Any) -> Bed:
            return beds.enter_context(Bed(count, **options))

        yield hosts
