"""Python's UTF-8 mode, in which the commands and processes of farandole run whatever the locale is."""

from __future__ import annotations

import os
import sys


def ensure_utf8() -> None:
    """Start this process's command again in UTF-8 mode if the locale has another encoding.

    Arguments, variables and paths are bytes to the operating system and UTF-8 between our processes. Under another
    locale, Python would refuse to start a worker with such a text, or change its bytes. Workers are not affected: they
    get the user's environment.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
