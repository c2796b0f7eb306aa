"""How pytest-xdist distributes the tests: all tests of a file run in one process, and files start in their order.

In the conformance suite, all tests of one world (a size and a transport) run in one process instead, and so do all
tests of a front end with a separate runtime, which takes seconds to import, and all tests on the Kubernetes cluster. So
each fixture of a module, a world or a runtime is created once. Tests share no name, port or folder, so that any two may
run at the same time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from frontends import FIRST, FRONT_ENDS

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

_CONFORMANCE = re.compile(r"^(?P<suite>tests/conformance/)[^\[]*\[((?P<world>\d+-[a-z]+)-)?(?P<front>\w+)")
_CLUSTER = "tests/kubernetes/"
_RUNTIMES = {name: front.runtime for name, front in FRONT_ENDS.items()}


def group_of(nodeid: str) -> str:
    """Return the name of a test's group, whose tests run in one process, one after the other."""
    if nodeid.startswith(_CLUSTER):
        return _CLUSTER  # Its API server takes half a minute to start, and half a gigabyte.
    found = _CONFORMANCE.match(nodeid)
    runtime = _RUNTIMES.get(found["front"]) if found else None
    if found and runtime not in (None, _RUNTIMES[FIRST]):
        return f"{found['suite']}{runtime}"
    return found["suite"] + found["world"] if found and found["world"] else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    # By default, the group with most tests is first, which need not be the longest.
    config.option.loadscopereorder = False
    return Scheduling(config, log)
