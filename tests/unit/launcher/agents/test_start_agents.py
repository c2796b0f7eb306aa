"""What the user is told about hosts that cannot reach each other."""

from __future__ import annotations

from farandole.control.launcher.agents.start_agents import Detour, tell_detours

TO_DO = (
    "To start agents from there, let hosts log in to each other, by keys or --ssh-option ForwardAgent=yes, and know "
    "each other's host keys; or choose --ssh-fanout 0"
)


def test_one_host() -> None:
    assert tell_detours([Detour("h2", "h1", "Warning: old key\nPermission denied (publickey).\n")]) == (
        "note: 1 host cannot be reached from h1 by ssh (h2 from h1: Permission denied (publickey).); the launcher "
        f"reaches it itself. {TO_DO}"
    )


def test_many_hosts_are_one_line() -> None:
    detours = [Detour(f"h{number}", f"h{number // 10}", "Host key verification failed.") for number in range(10, 40)]
    assert tell_detours(detours) == (
        "note: 30 hosts cannot be reached from 3 other hosts by ssh (h10 from h1: Host key verification failed.); the "
        f"launcher reaches them itself. {TO_DO}"
    )
