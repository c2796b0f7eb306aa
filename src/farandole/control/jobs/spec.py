"""What a user asks for: one job, in the words that all places understand.

    name: resnet-2
    command: [python, train.py, --epochs, "90"]
    workers: {min: 2, max: 8, replicas: 4}      # or `workers: 4`, or `workers: "2:8"`
    priority: 5
    queue: vision
    suspension: signal
    checkpoint: /shared/resnet-2

One schema serves a file (`farandole submit -f job.yaml`), the queue's database and the Kubernetes kind, whose `spec` it
is: `to_dict` and `from_dict` turn a `JobSpec` into plain data and back. Keys have the spelling that Kubernetes has
(`workingDirectory`). What only one place understands is in `options`, by the name of the place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from farandole.base.spelling import one_of
from farandole.control.jobs.errors import BadSpec

SUSPENSIONS = {
    "signal": "the signal is sent, the job saves what it needs within its grace and ends; it is started again later",
    "requeue": "the job is ended, and begins anew later",
    "never": "the job is never suspended once it runs",
}
"""What becomes of a job that has to give its slots back, by the word for it."""
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
GRACE_SECONDS = 30.0
DEFAULT_QUEUE = "default"

# Of numbers: what is sent and kept of a job has room for so many.
_MOST = 10**9

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,46}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORKERS = re.compile(r"(?P<min>\d{1,9})(?::(?P<max>\d{1,9}))?")


class Workers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many workers a job has: the least it can go on with, the most it can use, and what its user asks for."""

    min: int
    max: int
    replicas: int


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """One job, as its user asked for it: a field for each thing that can be asked for.

    Raises:
        BadSpec: by `check`, `from_dict` and `make`: a value that no job can have.
    """

    command: tuple[str, ...]
    workers: Workers
    name: str = ""
    """"": the place makes one up."""
    elastic: bool | None = None
    """Whether workers may come and go while it runs; None: if `min` and `max` differ."""
    priority: int = 0
    """The higher, the earlier."""
    queue: str = DEFAULT_QUEUE
    suspension: str = ""
    """One of `SUSPENSIONS`; "": `signal` for a job that has a checkpoint, `never` for others."""
    signal: str = "SIGTERM"
    """What tells the workers to save what they need and end."""
    grace: float = GRACE_SECONDS
    """Seconds they have for that."""
    image: str = ""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    resources: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Of each worker, as Kubernetes writes them: `cpu: "4"`, `memory: 8Gi`, `nvidia.com/gpu: "1"`."""
    checkpoint: str = ""
    """Where the job keeps checkpoints: a directory that all hosts share, a claim, or an object store's path."""
    working_directory: str = ""
    """"": where it was submitted, or the image's own."""
    duration: float | None = None
    """Seconds that it takes with the workers asked for, as its user thinks."""
    deadline: float | None = None
    """Seconds from its submission, in which it should be done."""
    application: str = ""
    """What is trained: jobs of one application resemble each other."""
    retries: int = 0
    """How often a job that failed is started again."""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What only one place understands, by its name."""

    @property
    def is_elastic(self) -> bool:
        return self.workers.min < self.workers.max if self.elastic is None else self.elastic

    @property
    def how_suspended(self) -> str:
        """One of `SUSPENSIONS`."""
        return self.suspension or ("signal" if self.checkpoint else "never")

    def check(self) -> None:
        """See whether a job can be like that.

        Raises:
            BadSpec: it cannot. Its `message` begins with the key that is wrong.
        """
        for wrong, hint in _wrongs(self):
            raise BadSpec(wrong, hint)


def _wrongs(spec: JobSpec) -> list[tuple[str, str]]:
    """Return what is wrong with a job, and what to do about it."""
    checks = (_wrong_names(spec), _wrong_workers(spec.workers, spec.elastic), _wrong_ending(spec), _wrong_values(spec))
    return [wrong for check in checks for wrong in check]


def _wrong_names(spec: JobSpec) -> list[tuple[str, str]]:
    wrongs = []
    if spec.name and not _NAME.fullmatch(spec.name):
        wrongs.append(
            (f"name: {spec.name!r} is not a valid name of a job", "at most 48 small letters, digits, . and -: resnet-2")
        )
    if not spec.command or not spec.command[0]:
        wrongs.append(("command: there is no command to run", "such as command: [python, train.py]"))
    if not spec.queue:
        wrongs.append(("queue: a queue has a name", "leave it out for the default one"))
    wrongs += [
        (f"environment: {name!r} is not a valid name of a variable", "letters, digits and underscores")
        for name in spec.environment
        if not _VARIABLE.fullmatch(name)
    ]
    texts = [("command", word) for word in spec.command]
    texts += [(f"environment.{name}", value) for name, value in spec.environment.items()]
    wrongs += [
        (f"{key}: {text!r} has a character of code 0", "no program can be given one: leave it out")
        for key, text in texts
        if "\0" in text
    ]
    return wrongs


def _wrong_workers(workers: Workers, elastic: bool | None) -> list[tuple[str, str]]:
    if workers.min < 1:
        return [(f"workers: a job cannot run with {workers.min}", "at least 1")]
    if workers.max < workers.min:
        return [(f"workers: at most {workers.max} are fewer than at least {workers.min}", "min is not above max")]
    if not workers.min <= workers.replicas <= workers.max:
        limits = f"at least {workers.min} and at most {workers.max}"
        return [(f"workers: {workers.replicas} replicas are outside of {limits}", "replicas lie between min and max")]
    if elastic is False and workers.min != workers.max:
        return [
            (
                f"workers: from {workers.min} to {workers.max} needs a job whose workers may come and go",
                "leave `elastic: false` out, or give one number",
            )
        ]
    return []


def _wrong_ending(spec: JobSpec) -> list[tuple[str, str]]:
    wrongs = []
    if spec.suspension and spec.suspension not in SUSPENSIONS:
        wrongs.append((f"suspension: there is no {spec.suspension!r}", one_of(spec.suspension, SUSPENSIONS)))
    if spec.signal not in SIGNALS:
        wrongs.append((f"signal: {spec.signal!r} cannot be sent", one_of(spec.signal, SIGNALS)))
    if not 0 <= spec.grace < math.inf:
        wrongs.append((f"grace: {spec.grace:g} s is not a time in which a job can end", "seconds from 0 on"))
    return wrongs


def _wrong_values(spec: JobSpec) -> list[tuple[str, str]]:
    wrongs = []
    for key, value in (("duration", spec.duration), ("deadline", spec.deadline)):
        if value is not None and not 0 < value < math.inf:
            wrongs.append((f"{key}: {value:g} s is not a valid time", "seconds above 0"))
    if spec.retries < 0:
        wrongs.append((f"retries: {spec.retries} is negative", "0: a job that fails has failed"))
    wrongs += [
        (f"{key}: {number} is beyond all bounds", f"at most {_MOST}")
        for key, number in (("workers", spec.workers.max), ("priority", spec.priority), ("retries", spec.retries))
        if abs(number) > _MOST
    ]
    return wrongs


def parse_workers(text: str) -> Workers:
    """Read `4`, or `2:8`; a job of `2:8` asks for 8.

    Raises:
        BadSpec: it is neither.

    Example:
        >>> parse_workers("2:8")
        Workers(min=2, max=8, replicas=8)
    """
    found = _WORKERS.fullmatch(text.strip())
    if found is None:
        raise BadSpec(f"workers: {text!r} is not a number of workers", "a number, such as 4, or MIN:MAX, such as 2:8")
    least = int(found["min"])
    most = int(found["max"] or least)
    return Workers(least, most, most)


def to_dict(spec: JobSpec) -> dict[str, Any]:
    """Return a job as plain data; what has its default is left out."""
    plain: dict[str, Any] = msgspec.to_builtins(spec)
    return plain


def from_dict(plain: Mapping[str, Any]) -> JobSpec:
    """Return the job that plain data describe: what `to_dict` made, or what a person wrote.

    Raises:
        BadSpec: they describe none. `message` begins with the key that is wrong, such as `workers.min: ...`.
    """
    data = _check_keys({key: value for key, value in plain.items() if value is not None}, JobSpec, "")
    if "command" not in data:
        raise BadSpec("command: there is none", "such as command: [python, train.py]")
    data["workers"] = _workers(data.get("workers"))
    if isinstance(data["command"], str):
        raise BadSpec("command: it is one text, and should be a list of words", "such as command: [python, train.py]")
    for key in ("environment", "resources"):
        data[key] = _texts(data.get(key, {}), key)
    try:
        spec = msgspec.convert(data, JobSpec)
    except msgspec.ValidationError as error:
        raise BadSpec(*_reworded(str(error))) from None
    spec.check()
    return spec


def _check_keys(data: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> dict[str, Any]:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in data:
        if key not in known:
            raise BadSpec(f"{where}{key}: there is no such key", one_of(str(key), known))
    return dict(data)


def _workers(given: Any) -> dict[str, Any]:
    """Return all three numbers, however they were written."""
    if given is None:
        given = 1
    if isinstance(given, (int, str)) and not isinstance(given, bool):
        workers = parse_workers(str(given))
        return {"min": workers.min, "max": workers.max, "replicas": workers.replicas}
    if not isinstance(given, Mapping):
        raise BadSpec(f"workers: {given!r} is not a number of workers", "such as workers: 4, or {min: 2, max: 8}")
    numbers = _check_keys(given, Workers, "workers.")
    for key, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadSpec(f"workers.{key}: {value!r} is not a number", "such as workers: {min: 2, max: 8}")
    some = numbers.get("replicas", numbers.get("max", numbers.get("min", 1)))
    least, most = numbers.get("min", some), numbers.get("max", max(some, numbers.get("min", some)))
    return {"min": least, "max": most, "replicas": numbers.get("replicas", most)}


def _texts(given: Any, key: str) -> dict[str, str]:
    """Return a mapping of texts; numbers, which YAML reads as such, are texts here."""
    if not isinstance(given, Mapping):
        raise BadSpec(f"{key}: {given!r} is not a mapping", f"such as {key}: {{NAME: value}}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise BadSpec(f"{key}.{name}: {value!r} is not text", 'put it in quotes: "..."')
    return {str(name): str(value) for name, value in given.items()}


def _reworded(said: str) -> tuple[str, str]:
    """Turn `Expected `int`, got `str` - at `$.priority`` into a sentence that begins with the key."""
    what, _, where = said.partition(" - at `$")
    key = where.strip("`").lstrip(".").replace("[...]", "")
    words = what.replace("`", "").replace("Expected ", "expected ").replace("int", "a number", 1)
    return f"{key or 'job'}: {words}", "docs/how-to/queue.md has all keys"
