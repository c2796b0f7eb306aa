"""`horovod.runner.js_run`: farandole does not start workers through LSF's jsrun."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any, NoReturn


def is_jsrun_installed() -> bool:
    """Return whether there is a program jsrun."""
    return shutil.which("jsrun") is not None


def js_run(
    settings: Any, nics: Any, env: Mapping[str, str], command: Any, stdout: Any = None, stderr: Any = None
) -> NoReturn:
    """Refuse to start workers through jsrun.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("farandole-horovod does not start workers through jsrun. Use horovodrun without it.")
