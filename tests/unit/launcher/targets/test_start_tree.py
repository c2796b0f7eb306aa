"""The tree of hosts along which agents are started."""

from __future__ import annotations

from collections import Counter

import pytest

from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.ssh import ssh_command
from farandole.control.launcher.targets.start_tree import from_another_host, split, started_from


def hosts(count: int) -> list[Host]:
    return [Host(f"h{number}") for number in range(count)]


@pytest.mark.parametrize(
    ("count", "fanout", "depth"),
    [
        (1, 32, 1),
        (32, 32, 1),
        (33, 32, 2),
        (1056, 32, 2),
        (1057, 32, 3),
        (33_824, 32, 3),
        (5, 1, 5),
        (6, 2, 2),
        (14, 2, 3),
        (500, 0, 1),
    ],
)
def test_every_host_is_started_once_from_a_host_that_has_room(count: int, fanout: int, depth: int) -> None:
    options = SshOptions(fanout=fanout)
    parents = started_from(hosts(count), options)
    direct = [part.host.label for part in split(hosts(count), options)]
    assert sorted([*parents, *direct]) == sorted(host.label for host in hosts(count))
    assert len(direct) == (min(count, fanout) if fanout else count)
    assert max(Counter(parents.values()).values(), default=0) <= fanout

    def level(label: str) -> int:
        return 1 + level(parents[label]) if label in parents else 1

    assert max(level(host.label) for host in hosts(count)) == depth


def test_shares_are_neighbors_and_differ_by_one_host_at_most() -> None:
    parts = split(hosts(10), SshOptions(fanout=4))
    assert [[part.host.name, *(host.name for host in part.below)] for part in parts] == [
        ["h0", "h1", "h2"],
        ["h3", "h4", "h5"],
        ["h6", "h7"],
        ["h8", "h9"],
    ]


def test_other_program_than_ssh_is_called_by_the_launcher_only() -> None:
    assert len(split(hosts(40), SshOptions(program="/etc/mpi/kubexec.sh"))) == 40
    assert len(split(hosts(40), SshOptions(program="/opt/bin/my-ssh"))) == 32


def test_agents_do_not_share_connections_whatever_the_user_has_chosen() -> None:
    options = SshOptions(port=2222, identity="key", options=("ControlPath=/tmp/%C", "ForwardAgent=yes"))
    command = ssh_command(Host("h1", python="/opt/py"), from_another_host(options))
    assert command[:7] == ["ssh", "-o", "ControlPath=none", "-o", "ControlPath=/tmp/%C", "-o", "ForwardAgent=yes"]
    assert command[-6:-1] == ["-i", "key", "-p", "2222", "h1"]
    assert "exec /opt/py -m" in command[-1]
