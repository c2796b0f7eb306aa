"""A pytest plugin that hides from tests what a user, an administrator or an earlier run has left on this machine.

All processes of tests have the folder `at_start` on Python's path.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

# Settings of farandole and Horovod, and variables that launchers and batch systems set for jobs.
_FOREIGN = re.compile(r"(FARANDOLE|HOROVOD|OMPI|PMIX|PMI|MPI|I_MPI|SLURM|LSB|TORCHELASTIC|XDG)_.*|KUBECONFIG")
# What is said to the tests themselves, from `FARANDOLE_EXPLORE=brief make test` to the library that they load.
_OF_TESTS = re.compile(
    r"FARANDOLE_(EXPLORE|FUZZ_FRAMES|LARGE_TESTS|LIBRARY|PEERS|.*_KILLS|.*_SEEDS|TAKE_OVERS|TRACES|WHEEL)"
)
# Variables and folders of caches that cost minutes to fill again, and that no farandole reads.
_CACHES = {"CCACHE_DIR": "ccache", "PIP_CACHE_DIR": "pip", "FARANDOLE_TEST_CACHE": "farandole-tests"}

AT_START = Path(__file__).parent / "at_start"


def pytest_configure(config: pytest.Config) -> None:
    before = dict(os.environ)
    home = leave_machine_state()

    def clean_up() -> None:
        shutil.rmtree(home, ignore_errors=True)
        os.environ.clear()  # A run inside another one gives it its home back.
        os.environ.update(before)

    config.add_cleanup(clean_up)


def leave_machine_state() -> Path:
    """Set an empty home and no settings for this process and its children; return the home, to be removed at the end.

    Jobs are those of this home: a machine-wide queue is not the default.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for variable, folder in _CACHES.items():
        os.environ.setdefault(variable, str(caches / folder))
    pip = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pip" / "pip.conf"
    if pip.exists():
        os.environ.setdefault("PIP_CONFIG_FILE", str(pip))  # It may name the only index that this machine reaches.
    for variable in list(os.environ):
        if _FOREIGN.fullmatch(variable) and not _OF_TESTS.fullmatch(variable) and variable not in _CACHES:
            del os.environ[variable]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(AT_START) not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(AT_START), *path]))
    home = Path(tempfile.mkdtemp(prefix="farandole-tests-home-"))
    os.environ["HOME"] = str(home)
    os.environ["FARANDOLE_ON"] = "local"
    return home
