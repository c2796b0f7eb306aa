"""How pytest-xdist shares out the tests: all tests of a file run in one process, and files begin in their order.

In the conformance suite, all tests of one world (a size and a transport) run in one process instead. So each fixture of
a module or a world is made once. Tests share no name, port or folder, so that any two may run at the same time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

_WORLD = re.compile(r"^(?P<suite>tests/conformance/).*\[(?P<world>\d+-[a-z]+)\b")


def group_of(nodeid: str) -> str:
    """Return the name of the group that a test runs in: one process, one test after the other."""
    found = _WORLD.match(nodeid)
    return found["suite"] + found["world"] if found else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    # By default what has most tests is first, which says nothing about how long it takes.
    config.option.loadscopereorder = False
    return Scheduling(config, log)
