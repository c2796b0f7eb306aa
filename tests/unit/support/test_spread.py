from __future__ import annotations

import pytest
from spread import group_of


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/conformance/test_forms.py::test_every_form[2-tcp-torch-whole]", "tests/conformance/2-tcp"),
        ("tests/conformance/test_join.py::test_alone[2-tcp-numpy]", "tests/conformance/2-tcp"),
        ("tests/conformance/test_failure.py::test_lost[torch-tcp]", "tests/conformance/test_failure.py"),
        ("tests/hosts/test_bed.py::test_a", "tests/hosts/test_bed.py"),
        ("tests/unit/core/test_group.py::test_a[2-tcp-x::y]", "tests/unit/core/test_group.py"),
    ],
)
def test_files_stay_together_and_so_do_worlds(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group
