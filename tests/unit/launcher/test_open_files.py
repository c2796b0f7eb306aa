"""The launcher's limit of open files."""

from __future__ import annotations

import resource

import pytest

from farandole.control.launcher.start import open_files
from farandole.errors import SpecError


def test_soft_limit_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        open_files.raise_limit(100)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == before[1]
        assert soft == (open_files.ENOUGH if hard == resource.RLIM_INFINITY else min(hard, open_files.ENOUGH))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("limits", [(1024, 1 << 20), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)])
def test_limit_that_suffices_is_never_lowered(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: changes.append(new))
    open_files.raise_limit(None)
    assert changes == ([(open_files.ENOUGH, limits[1])] if limits[0] == 1024 else [])


def test_hard_limit_that_is_too_low_is_an_error_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 256))
    with pytest.raises(SpecError, match="takes at least 1088 open files, and the hard limit is 256"):
        open_files.raise_limit(512)
