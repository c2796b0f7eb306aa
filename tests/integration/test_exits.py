"""The end of a program: which errors are shown, and how often."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

THREAD = """
import threading
import numpy as np
import farandole.numpy as hvd

hvd.init()

def reduce_for_ever():
    while True:
        hvd.allreduce(np.ones(1000), name="x")

thread = threading.Thread(target=reduce_for_ever, daemon=True)
thread.start()
thread.join(0.2)
"""

HOOKS = """
import sys
import farandole.numpy as hvd

hvd.init()
below = sys.excepthook

def show(*error):
    print("of the user", file=sys.stderr)
    below(*error)

sys.excepthook = show
hvd.shutdown()
hvd.init()
raise ValueError("of the script")
"""


def run(folder: Path, script: str, *launcher: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.run([*launcher, sys.executable, str(path)], capture_output=True, text=True, timeout=60)


def test_a_daemon_thread_ends_with_the_program_in_silence(tmp_path: Path) -> None:
    for launcher in (), (sys.executable, "-m", "farandole", "run", "-np", "2"):
        done = run(tmp_path, THREAD, *launcher)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_daemon_threads_own_error_is_shown(tmp_path: Path) -> None:
    done = run(tmp_path, THREAD.replace('name="x"', "op=99").replace("0.2", "30"))
    assert done.returncode == 0
    assert "Exception in thread" in done.stderr


def test_an_error_is_shown_once_if_the_users_hook_is_over_that_of_an_earlier_world(tmp_path: Path) -> None:
    done = run(tmp_path, HOOKS)
    assert done.returncode == 1
    first, *rest = done.stderr.splitlines()
    assert first == "of the user"
    assert rest[0].startswith("Traceback") and rest[-1] == "ValueError: of the script" and len(rest) == 4, done.stderr
