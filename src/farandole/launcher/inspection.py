"""Asks hosts what they are like: this machine directly, others through the system's ssh."""

from __future__ import annotations

import ipaddress
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from farandole.agent.inspect import inspect
from farandole.agent.inspect.addresses import addresses
from farandole.agent.inspect.facts import Facts
from farandole.agent.inspect.software import IMPORT_SECONDS

AT_ONCE = 16
HOST_SECONDS = 20.0
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--")
_SSH_FAILED = 255
_NO_PROGRAM = (126, 127)

# What ssh says, and what to do about it.
_SSH_HINTS = (
    ("Permission denied", "let `ssh {host} true` work without a password: ssh-copy-id {host}, or an agent"),
    ("Host key verification failed", "run `ssh {host} true` once by hand, and check the host's key"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "the host's key is another one than before: find out why"),
    ("Could not resolve hostname", "check the spelling, or add {host} to ~/.ssh/config or /etc/hosts"),
    ("Connection refused", "start sshd on {host}, or set its port in ~/.ssh/config"),
    ("timed out", "see that {host} is up, and that no firewall drops the connection"),
    ("No route to host", "see that {host} is up and in a network that this machine can reach"),
)


@dataclass(frozen=True)
class Silence:
    """Why a host could not be asked, and what to do about it."""

    why: str
    hint: str = ""


Inspect = Callable[[Sequence[str]], dict[str, Facts | Silence]]


def inspect_hosts(
    hosts: Sequence[str], *, try_import: bool = False, python: str | None = None
) -> dict[str, Facts | Silence]:
    """Ask several hosts at once, and return what they are like, or why that is not known, in the order given.

    Args:
        hosts: names as ssh takes them. Those of this machine are not asked through ssh.
        try_import: also import the frameworks there.
        python: the interpreter on the other hosts that has farandole; None: where this one is.
    """

    def ask(host: str) -> Facts | Silence:
        if is_this_machine(host):
            return inspect(try_import=try_import)
        seconds = HOST_SECONDS + (IMPORT_SECONDS if try_import else 0)
        return _ask(host, python or sys.executable, seconds, try_import)

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return dict(zip(hosts, pool.map(ask, hosts), strict=True))


def is_this_machine(host: str) -> bool:
    """Say whether a name or an address is this machine's."""
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False  # A name that only ssh's configuration knows.
    own = {address for _, address, _ in addresses()}
    return any(address in own or ipaddress.ip_address(address).is_loopback for address in found)


def _ask(host: str, python: str, seconds: float, try_import: bool) -> Facts | Silence:
    question = [python, "-m", "farandole.agent.inspect", *(["--import"] if try_import else [])]
    asked_at = time.time()
    try:
        done = subprocess.run(
            [*SSH, host, shlex.join(question)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except FileNotFoundError:
        return Silence("there is no ssh on this machine", "install openssh-client")
    except subprocess.TimeoutExpired:
        hint = f"see how long `ssh {host} {python} -c pass` takes"
        return Silence(f"no answer within {seconds:g} s", hint)
    if done.returncode != 0:
        return _why_not(host, python, done.returncode, done.stderr)
    return _read(host, done.stdout, asked_at, time.time())


def _read(host: str, told: str, asked_at: float, answered_at: float) -> Facts | Silence:
    # What a shell's start-up files print comes first.
    answer = next((line for line in reversed(told.splitlines()) if line.startswith("{")), "")
    try:
        facts = msgspec.json.decode(answer, type=Facts)
    except msgspec.DecodeError as error:
        return Silence(f"its answer cannot be read: {error}", f"install the same version of farandole on {host}")
    clock = msgspec.structs.replace(facts.clock, ahead=_ahead(facts.clock.now, asked_at, answered_at))
    return msgspec.structs.replace(facts, clock=clock)


def _ahead(told: float, asked_at: float, answered_at: float) -> float:
    """Return by how much at least a clock is ahead that was read between two moments of this one."""
    if told > answered_at:
        return told - answered_at
    return min(told - asked_at, 0.0)


def _why_not(host: str, python: str, code: int, stderr: str) -> Silence:
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    last = lines[-1].strip() if lines else f"exit code {code}"
    if code == _SSH_FAILED:
        hint = next((hint for sign, hint in _SSH_HINTS if sign in stderr), "run `ssh {host} true` to see more")
        return Silence(f"ssh cannot get there: {last}", hint.format(host=host))
    if code in _NO_PROGRAM:
        return Silence(f"there is no {python}: {last}", "say where Python is on that host: --python PATH")
    if "No module named" in last and "farandole" in last:
        hint = f"install this version of farandole for {python} on {host}, or name another one: --python PATH"
        return Silence(f"farandole is not installed there: {last}", hint)
    return Silence(last, f"run it by hand: ssh {host} {python} -m farandole.agent.inspect")
