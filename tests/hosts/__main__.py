"""`python -m tests.hosts 3`: open a bed of three hosts for interactive use, and remove it at the end.

`python -m tests.hosts 3 -- COMMAND` runs the command on the desk instead of a shell, and exits with its code.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.hosts import ssh
from tests.hosts.bed import Bed, why_not
from tests.hosts.errors import BedError

_ROOT = Path(__file__).resolve().parents[2]
_TWO_NETWORKS = ("mgmt0", "fast0")
_SLOTS = 2


def main(arguments: list[str]) -> int:
    """Open a bed, run a shell or a command on its desk, and return the exit code."""
    options, command = _parse(arguments)
    reason = why_not()
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    networks = _TWO_NETWORKS if options.two_networks else ("eth0",)
    try:
        with Bed(options.hosts, ipv6=options.ipv6, networks=networks, bandwidth=options.bandwidth) as bed:
            if command:
                return _run(bed, command)
            print(_explanation(bed), file=sys.stderr)
            return _run(bed, ["bash", "--norc", "-i"])
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the command to run instead of a shell, if any."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hosts",
        usage="%(prog)s HOSTS [options] [-- COMMAND...]",
        description="Several hosts on this machine, and a shell, or a command, on a desk beside them.",
    )
    parser.add_argument("hosts", metavar="HOSTS", type=int, help="how many")
    parser.add_argument("--ipv6", action="store_true", help="IPv6 addresses, and no others")
    parser.add_argument("--two-networks", action="store_true", help="mgmt0 and fast0 instead of eth0")
    parser.add_argument("--bandwidth", metavar="RATE", help="what a host can send and receive, such as 1gbit")
    own = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_args(arguments[:own]), arguments[own + 1 :]


def _run(bed: Bed, command: list[str]) -> int:
    with _ctrl_c_left_to_the_command():
        code = bed.desk.start(command, environment={"PS1": r"\h:\w\$ "}).wait()
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _ctrl_c_left_to_the_command() -> Iterator[None]:
    """Ignore Ctrl-C: the command also gets it, and decides when to end.

    This is a handler, which the command does not inherit, unlike SIG_IGN.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _explanation(bed: Bed) -> str:
    names = [host.name for host in bed.hosts]
    workers = _SLOTS * len(names)
    slots = ",".join(f"{name}:{_SLOTS}" for name in names)
    where = "\n".join(f"  {host.name:<6}{', '.join(host.addresses.values())}" for host in (*bed.hosts, bed.desk))
    return f"""\
You are on `desk`, beside these hosts:
{where}
Each has a file system of its own at /root, /home, /tmp and /run, and {_ROOT} in common.
ssh reads {ssh.CONFIG} on each; its keys are throw-away ones.

  ssh {names[0]}
  farandole run -np {workers} -H {slots} {Path(sys.executable).name} {_ROOT}/examples/digits.py

`exit` removes them all."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
