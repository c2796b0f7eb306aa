"""Notices that PyPI's horovod is installed beside farandole-horovod.

Both own the folder `horovod`. pip does not mind: the one installed later overwrites files of the other, and the one
is uninstalled takes files of the other along. So nothing works reliably, and it is better to say so.
"""

from __future__ import annotations

from importlib import metadata


def check() -> None:
    """Refuse to go on beside PyPI's horovod.

    Raises:
        ImportError: it is installed; the text says what to do.
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
