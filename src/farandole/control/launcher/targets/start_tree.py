"""Which host starts the agents of which others over ssh: a tree, so that the launcher need not reach every host itself.

With a fan-out of 32, a tree of depth 2 has up to 1,056 hosts, and one of depth 3 up to 33,824.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.ssh import is_ssh


@dataclass(frozen=True)
class Subtree:
    """A host, and the hosts that are reached through it."""

    host: Host
    below: tuple[Host, ...] = ()


def split(hosts: Sequence[Host], options: SshOptions) -> list[Subtree]:
    """Return the hosts that are reached directly, each with its share of the others.

    A share consists of neighbors in the list, which are often neighbors in the network.

    Example:
        >>> [[each.host.name, *(host.name for host in each.below)] for each in split(
        ...     [Host(f"h{number}") for number in range(1, 8)], SshOptions(fanout=3)
        ... )]
        [['h1', 'h2', 'h3'], ['h4', 'h5'], ['h6', 'h7']]
    """
    # Another program than ssh, such as a script that finds a pod, may be on the launcher's machine only.
    fanout = options.fanout if is_ssh(options) else 0
    if not fanout or len(hosts) <= fanout:
        return [Subtree(host) for host in hosts]
    least, larger = divmod(len(hosts), fanout)
    shares, start = [], 0
    for number in range(fanout):
        end = start + least + (number < larger)
        shares.append(Subtree(hosts[start], tuple(hosts[start + 1 : end])))
        start = end
    return shares


def started_from(hosts: Sequence[Host], options: SshOptions) -> dict[str, str]:
    """Return the host from which each host is reached, by labels, without hosts that the launcher reaches itself."""
    found: dict[str, str] = {}
    todo = split(hosts, options)
    while todo:
        share = todo.pop()
        below = split(share.below, options)
        found.update((each.host.label, share.host.label) for each in below)
        todo += below
    return found


def from_another_host(options: SshOptions) -> SshOptions:
    """Return the options with which an agent calls ssh.

    Connections are not shared: a process in the background would belong to no branch of the agent.
    """
    return replace(options, options=("ControlPath=none", *options.options))
