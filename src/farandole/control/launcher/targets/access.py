"""What a person can do about a host, by the way in which the launcher reaches it: ssh, or a call from the host."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.installation import install_command
from farandole.control.launcher.targets.not_started import explain
from farandole.control.launcher.targets.ssh import by_hand

Access = SshOptions | DialedHosts


def hint_after_loss(host: str, access: Access) -> str:
    """Return what to do after the loss of a host.

    Example:
        >>> hint_after_loss("h1", DialedHosts(lost="kubectl describe pod {host} shows why it ended"))
        'kubectl describe pod h1 shows why it ended'
    """
    if isinstance(access, DialedHosts):
        return access.lost.format(host=host)
    up = by_hand(Host(host), access, "uptime")
    return f"check that {host} and its network are up: ping {host}; {up}. It may have restarted, or hang"


def how_to_install(host: Host, access: Access, python: str, modules: Sequence[str] = ("farandole",)) -> str:
    """Return how to install the packages of modules into a Python of a host, as a command if ssh leads there."""
    if isinstance(access, DialedHosts):
        return f"{access.install.format(host=host.label)}: {install_command(host, None, python, modules)}"
    return install_command(host, access, python, modules)


def why_not_started(host: Host, said: str, access: Access) -> tuple[str, str]:
    """Return the problem, and a hint, from the messages of an agent's failed start."""
    if isinstance(access, DialedHosts):
        return said, hint_after_loss(host.label, access)
    return explain(host, said, access)
