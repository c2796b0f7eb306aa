"""`horovod.common.exceptions`."""

from __future__ import annotations

from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt, Picklable

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


class HorovodVersionMismatchError(Picklable, ImportError):
    """The installed version of a framework is not the expected one.

    Attributes:
        name: the framework's name.
        version: the one that is there.
        installed_version: the one that was expected.
    """

    def __init__(self, name: str, version: str, installed_version: str | None) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version), name=name)
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str | None) -> str:
    """Return the message of such a mismatch."""
    return f"{name} is there in version {version}, but version {installed_version} was expected."
