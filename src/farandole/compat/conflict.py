"""Detects that PyPI's horovod is installed together with farandole-horovod.

Both own the folder `horovod`, and pip does not object: the one installed later overwrites files of the other, and
uninstalling one removes files of the other. So nothing works reliably, and it is better to refuse.
"""

from __future__ import annotations

from importlib import metadata


def check() -> None:
    """Refuse to run if PyPI's horovod is installed.

    Raises:
        ImportError: it is installed; the message says what to do.
    """
    try:
        version = metadata.version("horovod")
    except metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"horovod {version} and farandole-horovod are both installed, and overwrite each other's files. Keep one: "
        "pip uninstall -y horovod farandole-horovod && pip install farandole-horovod",
        name="horovod",
    )
