"""Error files of workers, and their copies in the output directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

# As a script does it whose main function has PyTorch's @record.
RECORD = """
import json
trace = 'Traceback (most recent call last):\\n  File "train.py", line 8, in train\\nValueError: boom\\n'
extra = {"py_callstack": trace, "timestamp": "1700000000"}
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: boom", "extraInfo": extra}}, file)
"""


def test_recorded_error_is_reported_and_kept(start: Callable[..., Any], tmp_path: Path) -> None:
    script = f"if rank == 1:{RECORD.replace(chr(10), chr(10) + '    ')}\n    os._exit(3)\ntime.sleep(60)"
    code, _, err = start(script, 2, "--output-dir", str(tmp_path / "logs")).finish()
    assert code == 3
    assert "failed first: it exited with code 3 (ValueError: boom)\n" in err
    assert '      File "train.py", line 8, in train\n    ValueError: boom\n' in err
    told = json.loads((tmp_path / "logs" / "rank.1" / "error.json").read_text())["message"]
    assert (told["errorCode"], told["extraInfo"]["timestamp"]) == (3, "1700000000")


def test_error_files_leave_nothing_behind(start: Callable[..., Any]) -> None:
    script = RECORD + 'tell("place", os.environ["TORCHELASTIC_ERROR_FILE"])'
    job = start(script, 1)
    place = Path(job.told("place"))
    assert job.finish()[0] == 0
    assert place.name == "0.json" and not place.parent.exists()


def test_error_file_of_the_user_is_not_touched(start: Callable[..., Any], tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    code, _, _ = start(RECORD + "sys.exit(1)", 1, "-x", f"TORCHELASTIC_ERROR_FILE={own}").finish()
    assert code == 1 and json.loads(own.read_text())["message"]["message"] == "ValueError: boom"
