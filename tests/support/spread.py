"""How pytest-xdist shares out the tests: files stay whole, and in order; of the conformance suite each world does.

Fixtures of a module or a world are so made once. `pytest -n 2` needs nothing else: tests share no name, port or folder.
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
