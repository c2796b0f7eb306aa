"""Parsing of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.control.launcher.job.host_list import Host, choose, parse_hosts, read_host_file, with_slots
from farandole.errors import SpecError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h1:4,h2:4", [("h1", 4), ("h2", 4)]),
        (" h1 , h2:2 ", [("h1", None), ("h2", 2)]),
        ("node[08-11]:8", [("node08", 8), ("node09", 8), ("node10", 8), ("node11", 8)]),
        ("n[1,3,5-6]", [("n1", None), ("n3", None), ("n5", None), ("n6", None)]),
        ("r[1-2]n[1-2]:1", [("r1n1", 1), ("r1n2", 1), ("r2n1", 1), ("r2n2", 1)]),
        ("[fd00::1]:4,fd00::2,[fe80::1%eth0]:1", [("fd00::1", 4), ("fd00::2", None), ("fe80::1%eth0", 1)]),
        ("10.0.0.1:2,me@h2:3,me@[fd00::3]:1", [("10.0.0.1", 2), ("me@h2", 3), ("me@fd00::3", 1)]),
        ("node-1.cluster_a.example:0", [("node-1.cluster_a.example", 0)]),
    ],
)
def test_hosts(text: str, expected: list[tuple[str, int | None]]) -> None:
    assert [(host.name, host.slots) for host in parse_hosts(text)] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Invalid host input"),
        ("h1:2,", "Invalid host input"),
        ("h1:", "not a number of slots"),
        ("h1:-1", "not a number of slots"),
        ("h1:two", "not a number of slots"),
        ("-oProxyCommand=x:1", "not a name"),
        ("h1;reboot:1", "not a name"),
        ("h1:1,me@h1:2", "host h1 is listed twice"),
        ("n[3-1]", "not a range"),
        ("n[a-b]", "not a name"),
        ("n[1-99999999]", "more than"),
        ("n[1-999]n[1-999]", "more than"),
        ("[fd00::1]4", "not an IPv6 address with slots"),
    ],
)
def test_invalid_hosts_are_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("[", r"\[")):
        parse_hosts(text)


def test_host_files_of_all_kinds(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(
        "# Horovod, Open MPI, DeepSpeed\nworker-0 slots=4  # the first\n\nworker-1 slots = 2 max_slots=8\n"
        "worker-[2-3]:8\nplain\nfd00::7 slots=1\nlast slots=1 python=/opt/env/bin/python\n"
        "H1 SLOTS=2 Max-Slots=4\nh2 cpu=3 username=ann boards=1\nh3:2 slots=2 user=ann binding=user:0,1 ifname=ib0\n"
    )
    assert read_host_file(file) == (
        Host("worker-0", 4),
        Host("worker-1", 2),
        Host("worker-2", 8),
        Host("worker-3", 8),
        Host("plain"),
        Host("fd00::7", 1),
        Host("last", 1, "/opt/env/bin/python"),
        Host("H1", 2),
        Host("ann@h2", 3),
        Host("ann@h3", 2),
    )


def test_host_file_may_begin_with_a_byte_order_mark_and_end_lines_as_on_windows(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"\xef\xbb\xbfh1 slots=2\r\n\r\nh2:4\r\n")
    assert read_host_file(file) == (Host("h1", 2), Host("h2", 4))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("h1 four\n", "line 1: 'four' is not known after the name of a host (hint: write lines such as: h1 slots=4)"),
        ("h1\nh2 lots=2\n", "line 2: 'lots=2' is not known after the name of a host (hint: did you mean slots=2? "),
        ("h1 slots\n", "did you mean slots=4?"),
        ("h1 slots=1 slots=2\n", "line 1: 'slots=2' contradicts an earlier word"),
        ("h1:4 slots=2\n", "line 1: 'h1:4' has another number of slots than 2"),
        ("h1 user=-oProxyCommand=x\n", "is not a name and a number of slots"),
        ("h1\nh2 slots=x\n", "not a number of slots"),
        ("h1 slots=1\n\nh1 slots=2\n", "listed twice"),
        ("# nobody\n", "lists no hosts"),
    ],
)
def test_invalid_host_files_are_refused(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(content)
    with pytest.raises(SpecError) as caught:
        read_host_file(file)
    assert words in str(caught.value)


def test_some_of_the_hosts() -> None:
    hosts = parse_hosts("n[1-5]:2,me@gpu:1")

    def names(include: str, exclude: str) -> list[str]:
        return [host.label for host in choose(hosts, include, exclude)]

    assert names("", "") == ["n1", "n2", "n3", "n4", "n5", "gpu"]
    assert names("n[2-3],gpu", "") == ["n2", "n3", "gpu"]
    assert names("n1@n4", "") == ["n1", "n4"]
    assert names("", "n[1-4]") == ["n5", "gpu"]
    for include, exclude, words in [("n9", "", "not one of"), ("", "n[1-5],gpu", "no host"), ("n1:0,2", "", "slots")]:
        with pytest.raises(SpecError, match=words):
            names(include, exclude)


def test_default_number_of_slots() -> None:
    assert [host.slots for host in with_slots(parse_hosts("a,b:3"), None)] == [1, 3]
    assert [host.slots for host in with_slots(parse_hosts("a,b:3"), 8)] == [8, 3]
