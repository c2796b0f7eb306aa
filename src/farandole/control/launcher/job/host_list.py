"""Parsers for the hosts of a job: `-H`, several kinds of host files, ranges, and what to include and exclude.

    h1:4,h2:4                   names and slots
    [fd00::1]:4,fd00::2         IPv6 addresses: in brackets if slots follow
    node[01-16]:8,gpu[1,3]      ranges
    me@h1:2                     as another user, in ssh's syntax

A host file has one host per line: `h1 slots=4` (Horovod, Open MPI, DeepSpeed), or `h1:4` (MPICH, Intel MPI). A `#`
begins a comment. `user=NAME` gives the user on that host, and `python=PATH` its Python. Other words of these
programs, such as `max_slots=8`, are ignored; a word that none of them knows is an error.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farandole.base.spelling import similar
from farandole.errors import SpecError

MOST_HOSTS = 65536
# Horovod's words: its users' tests look for them.
INVALID = "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."

# Letters of any script, as in host names; a leading dash would be an option of ssh.
_NAME = re.compile(r"(?:[\w.-]+@)?\w[\w.-]*")
_RANGE = re.compile(r"\[([\d,\s-]+)\]")
_HOW = "write -H h1:4,h2:4"

# The meaning of words in a line of a host file, in lower case and with underscores.
_MEANINGS = {
    **dict.fromkeys(("slots", "count", "cpu"), "slots"),  # Open MPI has three names for it.
    **dict.fromkeys(("user", "username", "user_name"), "user"),
    "python": "python",
    # A queue writes these.
    "slot_numbers": "slot numbers",
}
# Limits of oversubscription, the layout of a machine, binding and interfaces, in Open MPI, MPICH and Intel MPI.
_IGNORED = re.compile(
    r"(max_)?(slots|count|cpu)(_max)?|boards|sockets_per_board|cores_per_socket|binding|ifname", re.ASCII
)


@dataclass(frozen=True)
class Host:
    """A host and its number of slots."""

    name: str
    """The name for ssh: a name, an address, or `user@name`."""
    slots: int | None = None
    """Number of workers that fit; None: the number requested for each host, or one."""
    python: str = ""
    """The Python interpreter to use there; "": the same path as here."""
    machine: str = ""
    """The machine that it is on, if several hosts may share one; "": its own machine."""
    devices: tuple[str, ...] = ()
    """The GPUs that its workers may use, as for CUDA_VISIBLE_DEVICES; (): all, or none."""
    slot_numbers: str = ""
    """The numbers of these slots on the machine, if a queue has assigned them: `1,3/4` is the second and the fourth of
        four. "": all slots, or not known."""
    directory: str = ""
    """The directory in which its workers run; "": the launcher's."""

    @property
    def label(self) -> str:
        """The name shown to people: without the user."""
        return self.name.rpartition("@")[2]


def parse_hosts(text: str, option: str = "-H") -> tuple[Host, ...]:
    """Parse hosts separated by commas, which were given by an option.

    Raises:
        SpecError: a host is malformed or listed twice.

    Example:
        >>> [(host.name, host.slots) for host in parse_hosts("a:2,n[08-10]:4,[::1]:3,fd00::2")]
        [('a', 2), ('n08', 4), ('n09', 4), ('n10', 4), ('::1', 3), ('fd00::2', None)]
    """
    if not text.strip():
        raise SpecError(INVALID, _HOW)
    return _distinct([host for item in _split(text) for host in _parse(item, f"{option} {text}")])


def unreadable_host_file(path: Path | str, error: OSError | UnicodeDecodeError) -> SpecError:
    """Return the error for a host file that cannot be read."""
    return SpecError(f"the host file {path} cannot be read: {getattr(error, 'strerror', error)}", "check the path")


def read_host_file(path: Path) -> tuple[Host, ...]:
    """Read a host file.

    Raises:
        SpecError: it cannot be read or lists no host, a line is malformed, or a host is listed twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_host_file(path, error) from None
    hosts = parse_host_lines(text, str(path))
    if not hosts:
        raise SpecError(f"{path} lists no hosts", "write lines such as: h1 slots=4")
    return _distinct(hosts)


def parse_host_lines(text: str, where: str) -> tuple[Host, ...]:
    """Parse lines with one host each, as in host files and discovery scripts. A host may be listed twice.

    Args:
        text: the lines.
        where: the name of the source in errors.

    Raises:
        SpecError: a line is malformed.

    Example:
        >>> [(host.name, host.slots) for host in parse_host_lines("a:2\\n\\n[::1]:4\\nb slots=3", "hosts")]
        [('a', 2), ('::1', 4), ('b', 3)]
    """
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if words:
            hosts += _of_line(words, f"{where}, line {number}")
    return tuple(hosts)


def choose(hosts: Sequence[Host], include: str, exclude: str) -> tuple[Host, ...]:
    """Return the hosts that are included, if `include` is not empty, and not excluded.

    Both are names and ranges, separated by commas or, as in DeepSpeed, by `@`.

    Raises:
        SpecError: a name is not one of the hosts, or no host is left.
    """
    wanted = _names(include, hosts, "--include") if include else {host.label for host in hosts}
    unwanted = _names(exclude, hosts, "--exclude") if exclude else set()
    chosen = tuple(host for host in hosts if host.label in wanted - unwanted)
    if not chosen:
        raise SpecError("no host is left after --include and --exclude", "name fewer hosts in --exclude")
    return chosen


def with_slots(hosts: Iterable[Host], slots: int | None) -> tuple[Host, ...]:
    """Set this number of slots for hosts without one; None means one slot each."""
    return tuple(replace(host, slots=slots_of(host, slots)) for host in hosts)


def with_python(hosts: Iterable[Host], pythons: Iterable[str]) -> tuple[Host, ...]:
    """Return the hosts with the Python to use there.

    Args:
        hosts: the hosts of a job.
        pythons: `HOST=PATH`, or `PATH` for all hosts that have none yet. Unknown hosts are skipped.
    """
    hosts = tuple(hosts)
    for text in pythons:
        label, equals, path = text.rpartition("=")
        hosts = tuple(
            replace(host, python=path) if label == host.label or not (equals or host.python) else host for host in hosts
        )
    return hosts


def slots_of(host: Host, slots: int | None = None) -> int:
    """Return the number of slots of a host, which may be 0; without one, the default; without a default, 1."""
    return (slots or 1) if host.slots is None else host.slots


def _names(text: str, hosts: Sequence[Host], flag: str) -> set[str]:
    known = {host.label for host in hosts}
    names = set()
    for item in _split(text.replace("@", ",")):
        for host in _parse(item, f"{flag} {text}"):
            if host.label not in known:
                raise SpecError(f"{flag}: {host.label} is not one of the hosts", f"they are {', '.join(sorted(known))}")
            if host.slots is not None:
                raise SpecError(
                    f"{flag} {text}: single slots of a host cannot be chosen",
                    "name whole hosts, and set CUDA_VISIBLE_DEVICES on them",
                )
            names.add(host.label)
    return names


def _of_line(words: list[str], where: str) -> list[Host]:
    hosts = _parse(words[0], where)
    options: dict[str, str] = {}
    for word in words[1:]:
        meaning, value = _read_word(word, where)
        if options.setdefault(meaning, value) != value:
            raise SpecError(f"{where}: {word!r} contradicts an earlier word", "give each number once: h1 slots=4")
    if "slots" in options:
        slots = _slots(options["slots"], where)
        if any(host.slots not in (None, slots) for host in hosts):
            raise SpecError(f"{where}: {words[0]!r} has another number of slots than {slots}", "give it once: h1:4")
        hosts = [replace(host, slots=slots) for host in hosts]
    if user := options.get("user"):
        hosts = [_host(f"{user}@{host.label}", host.slots, where) for host in hosts]
    numbers = _slot_numbers(options.get("slot numbers", ""), where)
    return [replace(host, python=options.get("python", ""), slot_numbers=numbers) for host in hosts]


def _read_word(word: str, where: str) -> tuple[str, str]:
    """Return the key of a word such as `slots=4`, "" if it is ignored, and its value."""
    name, equals, value = word.partition("=")
    known = name.lower().replace("-", "_")
    if equals and known in _MEANINGS:
        return _MEANINGS[known], value
    if equals and _IGNORED.fullmatch(known):
        return "", ""
    near = similar(known, _MEANINGS)
    meant = f"did you mean {near}={value or 4}? " if near else ""
    raise SpecError(
        f"{where}: {word!r} is not known after the name of a host", f"{meant}write lines such as: h1 slots=4"
    )


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    return [item.strip() for item in re.split(r",(?![^\[]*\])", text)]


def _parse(item: str, where: str) -> list[Host]:
    """Parse one item, which may be a range."""
    name, slots = _cut_slots(item, where)
    return [_host(each, slots, where) for each in _expand(name, where)]


def _host(name: str, slots: int | None, where: str) -> Host:
    if not _is_address(name) and not _NAME.fullmatch(name):
        raise SpecError(INVALID, f"{where}: {name!r} is not a name and a number of slots")
    return Host(name, slots)


def _cut_slots(item: str, where: str) -> tuple[str, int | None]:
    user, at, host = item.rpartition("@")
    if host.startswith("[") and ":" in host.partition("]")[0]:
        address, _, rest = host[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise SpecError(f"{where}: {item!r} is not an IPv6 address with slots", "write [fd00::1]:4")
        return user + at + address, _slots(rest[1:], where) if rest else None
    if _is_address(host):
        return item, None
    name, colon, slots = item.rpartition(":")
    return (name, _slots(slots, where)) if colon else (item, None)


def _slots(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise SpecError(INVALID, f"{where}: {text!r} is not a number of slots")
    return int(text)


def _slot_numbers(text: str, where: str) -> str:
    if text and not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*/[1-9][0-9]{0,5}", text):
        raise SpecError(
            f"{where}: {text!r} is not a list of numbers of slots", "leave it to the queue, which writes it"
        )
    return text


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.rpartition("@")[2].partition("%")[0])
    except ValueError:
        return False
    return True


def _expand(name: str, where: str) -> list[str]:
    match = _RANGE.search(name)
    if match is None:
        return [name]
    before, after = name[: match.start()], name[match.end() :]
    tails = _expand(after, where)
    names = [f"{before}{number}{tail}" for number in _numbers(match[1], where) for tail in tails]
    if len(names) > MOST_HOSTS:
        raise SpecError(f"{where}: {name} means more than {MOST_HOSTS} hosts")
    return names


def _numbers(text: str, where: str) -> list[str]:
    """Expand `01-03,7` to `01 02 03 7`; leading zeros are kept."""
    numbers: list[str] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise SpecError(f"{where}: [{text}] is not a range of numbers", "write node[01-16]")
        if dash and int(last) - int(first) >= MOST_HOSTS:
            raise SpecError(f"{where}: [{text}] means more than {MOST_HOSTS} hosts")
        numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)] if dash else [first]
    return numbers


def _distinct(hosts: Sequence[Host]) -> tuple[Host, ...]:
    seen: set[str] = set()
    for host in hosts:
        if host.label in seen:
            raise SpecError(f"host {host.label} is listed twice", f"list it once, with all its slots: {host.label}:2")
        seen.add(host.label)
    return tuple(hosts)
