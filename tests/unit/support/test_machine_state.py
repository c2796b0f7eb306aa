"""Tests do not see the state of this machine, or the settings of the user who starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine_state import leave_machine_state

from farandole.control.cli.main import main

SHOW_PLACES = """\
import os
import re
from farandole.control.agent.cache import default_directory
from farandole.worker.core import user_files
from farandole.control.jobs.places import default_place
from farandole.control.launcher.daemon.jobs import jobs_of_this_user
from farandole.control.queue.address import user_state

for place in (jobs_of_this_user(os.environ)._root, user_state(os.environ), os.fsdecode(default_directory())):
    print(place)
print(default_place(os.environ))
"""


def test_a_process_of_the_tests_has_a_home_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW_PLACES], capture_output=True, text=True, check=True)
    *places, default = done.stdout.splitlines()
    assert [place for place in places if not place.startswith(f"{os.environ['HOME']}/")] == []
    assert Path(os.environ["HOME"]).name.startswith("farandole-tests-home-") and default == "local"


def test_what_is_planted_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = tmp_path / "state" / "farandole" / "queue"
    planted.mkdir(parents=True)
    (planted / "socket").touch()
    with monkeypatch.context() as changed:
        changed.setattr(os, "environ", os.environ.copy())
        os.environ |= {
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "FARANDOLE_ON": "nowhere",
            "HOROVOD_RANK": "3",
            "FARANDOLE_EXPLORE": "brief",
        }
        leave_machine_state().rmdir()
        assert not {"XDG_STATE_HOME", "HOROVOD_RANK"} & set(os.environ)
        assert os.environ["FARANDOLE_EXPLORE"] == "brief"
        assert main(["jobs"]) == 0
    assert capsys.readouterr().err == "no job is running\n"


def test_settings_that_tests_read_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = Path(__file__).parents[2]
    sources = "".join(path.read_text() for path in tests.rglob("test_*.py"))
    settings = set(re.findall(r'environ\.get\("(FARANDOLE_[A-Z_]+)"', sources)) - {"FARANDOLE_RANK"}
    assert "FARANDOLE_FUZZ_FRAMES" in settings
    with monkeypatch.context() as changed:
        changed.setattr(os, "environ", os.environ.copy())
        os.environ |= dict.fromkeys(settings, "given")
        leave_machine_state().rmdir()
        assert {name for name in settings if os.environ.get(name) != "given"} == set()
