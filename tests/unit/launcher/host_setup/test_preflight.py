"""The evaluation of hosts' reports before anything starts. No host is contacted."""

from __future__ import annotations

import pytest

from farandole.control.agent.protocol import Interface, Ready
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.host_setup.preflight import (
    Finding,
    _how_to_get,
    _targets_of,
    choose_networks,
    compare,
    judge_networks,
    not_reached,
    refuse_if_wrong,
    render,
)
from farandole.control.launcher.host_setup.prepare import Preparation
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.output.console import Console
from farandole.errors import SpecError

SSH = SshOptions(port=2222)


def ready(machine: str = "", *interfaces: tuple[str, str]) -> Ready:
    listed = tuple(Interface(name, address, 24, 0) for name, address in interfaces)
    return Ready("1.0", "3.11.7", "node", machine, 8, 0.5, 2, listed, "127.0.0.1:1", 2, 0.0)


def finding(label: str, *interfaces: tuple[str, str]) -> Finding:
    found = Finding(label, 4, ready(label, *interfaces))
    choose_networks(found, ())
    return found


def three() -> list[Finding]:
    return [finding(f"h{number}", ("fast0", f"10.2.0.{number}"), ("mgmt0", f"10.1.0.{number}")) for number in (1, 2, 3)]


def all_reach_all(findings: list[Finding]) -> dict[tuple[int, int], dict[str, str]]:
    pairs = [(a, b) for a in range(len(findings)) for b in range(len(findings)) if a != b]
    return {(a, b): {each: "" for _, listed in findings[b].networks for each in listed} for a, b in pairs}


def test_all_is_well() -> None:
    hosts = three()
    judge_networks(hosts, all_reach_all(hosts))
    refuse_if_wrong(hosts, SSH)
    assert [host.reaches for host in hosts] == [(2, 2)] * 3
    assert hosts[0].networks == (("fast0", ("10.2.0.1",)), ("mgmt0", ("10.1.0.1",)))


def test_address_that_one_host_cannot_reach_is_omitted() -> None:
    hosts = three()
    answers = all_reach_all(hosts)
    answers[0, 2]["10.1.0.3"] = "No route to host"
    judge_networks(hosts, answers)
    refuse_if_wrong(hosts, SSH)
    assert hosts[2].networks == (("fast0", ("10.2.0.3",)),)
    assert len(hosts[1].networks) == 2


def test_hosts_with_different_routes_keep_all_addresses() -> None:
    hosts = three()
    answers = all_reach_all(hosts)
    answers[0, 2]["10.1.0.3"] = answers[1, 2]["10.2.0.3"] = "Connection refused"
    judge_networks(hosts, answers)
    refuse_if_wrong(hosts, SSH)
    assert len(hosts[2].networks) == 2


REFUSAL = """\
2 of 3 hosts cannot take part; nothing was started

    host  slots  cores  load  gpus  python  farandole  torch   clock   reaches
    h1    4      8      0.5   2     3.11.7  1.0        2.13.0  +0.0 s  1 of 2   NOT READY
    h2    4      8      0.5   2     3.11.7  1.0        ?       +9.0 s  2 of 2   ready
    h3    4      -      -     -     -       -          -       -       -        NOT READY

  h1: it does not reach h3 (10.2.0.3: no answer within 3.0 s; 10.1.0.3: no answer within 3.0 s)
    hint: workers talk to each other on arbitrary TCP ports: open the firewall between these hosts, or name a network \
that connects them: --network 10.0.0.0/8
  h3: no ssh server listens there
    hint: start sshd on it"""


def test_refusal_has_hint_for_each_host() -> None:
    hosts = three()
    answers = all_reach_all(hosts)
    for address in answers[0, 2]:
        answers[0, 2][address] = "no answer within 3.0 s"
    judge_networks(hosts, answers)
    hosts[0].versions = {"python": "3.11.7", "torch": "2.13.0"}
    hosts[1].versions = {"python": "3.11.7", "torch": ""}
    hosts[1].clock_ahead = 9.0
    hosts[2] = Finding("h3", 4, problem="no ssh server listens there", hint="start sshd on it")
    with pytest.raises(SpecError) as caught:
        refuse_if_wrong(hosts, SSH)
    assert caught.value.message == REFUSAL
    assert caught.value.hint == "farandole doctor --ssh-port 2222 -H h1,h3 shows more"
    with pytest.raises(SpecError) as caught:
        refuse_if_wrong(hosts, DialedHosts())
    assert caught.value.hint == "farandole doctor, where these hosts run, shows more"


def test_a_package_is_missing_on_a_host_that_has_dialed() -> None:
    hint = _how_to_get(["yaml"], Host("h1"), DialedHosts(install="install it in the image of {host}"), "/opt/py")
    assert hint == "install it in the image of h1: /opt/py -m pip install PyYAML"


def test_an_agent_has_not_started_on_a_host_that_has_dialed() -> None:
    finding = not_reached(Host("h1"), 1, AgentLost("its agent has ended"), DialedHosts(lost="ask {host}"))
    assert (finding.problem, finding.hint) == ("its agent has ended", "ask h1")


@pytest.mark.parametrize(
    ("spec", "dials"),
    [
        (LaunchSpec(("true",), 1, dialed=DialedHosts(lost="x")), True),
        (LaunchSpec(("true",), 1, elastic=Elastic(1, 1, discovery="dial:1:f")), True),
        (LaunchSpec(("true",), 1), False),
    ],
)
def test_hints_know_how_hosts_are_reached(spec: LaunchSpec, dials: bool) -> None:
    one = Preparation(spec, Machine("m", 1, 0, "/", {}), Console(print, print), print, "job").for_host(Host("h1", 1))
    assert isinstance(one._spec.access, DialedHosts) == isinstance(spec.access, DialedHosts) == dials


def test_unusual_differences_are_noted() -> None:
    hosts = three()
    hosts[0].versions, hosts[1].versions = {"torch": "2.13.0"}, {"torch": "2.12.0"}
    hosts[1].clock_ahead, hosts[2].clock_ahead = -60.0, 1.0
    hosts[2].facts = ready("h2")
    assert compare(hosts, []) == [
        "the clock of h2 is 60 s behind this machine's; logs will not be in order. Check that NTP is running there",
        "torch differs between hosts: 2.13.0 on h1; 2.12.0 on h2",
        "h2 and h3 are one machine: its workers share it",
    ]
    assert len(compare(hosts, ["h2"])) == 2


def test_a_wanted_network() -> None:
    host = Finding("h1", 1, ready("", ("fast0", "10.2.0.1"), ("mgmt0", "10.1.0.1")))
    choose_networks(host, ["10.1.0.0/16", "fast0"])
    assert [name for name, _ in host.networks] == ["mgmt0", "fast0"]
    choose_networks(host, ["ib0"])
    assert host.problem == "none of its addresses is in the network ib0; it has: fast0 10.2.0.1/24, mgmt0 10.1.0.1/24"


@pytest.mark.parametrize("hosts", [1, 2, 3, 32, 33, 64, 100, 256])
def test_many_hosts_share_the_connection_tests(hosts: int) -> None:
    tried = [_targets_of(number, hosts) for number in range(hosts)]
    assert all(number not in each for number, each in enumerate(tried))
    assert all(len(each) <= 31 for each in tried)
    if hosts > 1:
        assert {target for each in tried for target in each} == set(range(hosts))


def test_table_of_hosts_for_jobs_without_python() -> None:
    assert render([Finding("h1", 2, ready())]) == [
        "host  slots  cores  load  gpus  python  farandole  clock   reaches",
        "h1    2      8      0.5   2     3.11.7  1.0        +0.0 s  -        ready",
    ]
