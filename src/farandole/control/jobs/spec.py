"""The specification of one job, in terms that all places understand.

    name: resnet-2
    command: [python, train.py, --epochs, "90"]
    workers: {min: 2, max: 8, replicas: 4}      # or `workers: 4`, or `workers: "2:8"`
    priority: 5
    queue: vision
    suspension: signal
    checkpoint: /shared/resnet-2

One schema serves job files (`farandole submit -f job.yaml`), the queue's database, and the `spec` of the Kubernetes
kind: `to_dict` and `from_dict` turn a `JobSpec` into plain data and back. Keys are spelled as in Kubernetes
(`workingDirectory`). Settings that only one place understands are in `options`, under the name of the place.
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
    "signal": "the job gets the signal, saves a checkpoint within its grace period and ends; it is restarted later",
    "requeue": "the job is ended, and starts from the beginning later",
    "never": "the job is never suspended once it runs",
}
"""Ways in which a job releases its slots when it is suspended, by name."""
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
GRACE_SECONDS = 30.0
DEFAULT_QUEUE = "default"

# The largest number that databases and messages about jobs can store.
_MOST = 10**9

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,46}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORKERS = re.compile(r"(?P<min>\d{1,9})(?::(?P<max>\d{1,9}))?")


class Workers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of workers: the fewest that the job can run with, the most it can use, and the number requested."""

    min: int
    max: int
    replicas: int


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """One job, as its user requested it: one field for each key of a job file."""

    command: tuple[str, ...]
    workers: Workers
    name: str = ""
    """"": the place chooses a name."""
    elastic: bool | None = None
    """Whether workers may join and leave while the job runs; None: if `min` and `max` differ."""
    priority: int = 0
    """Jobs of higher priority run first."""
    queue: str = DEFAULT_QUEUE
    suspension: str = ""
    """One of `SUSPENSIONS`; "": `signal` for a job with a checkpoint, `never` for others."""
    signal: str = "SIGTERM"
    """Signal that asks the workers to save a checkpoint and end."""
    grace: float = GRACE_SECONDS
    """Seconds between the signal and the kill."""
    image: str = ""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    resources: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Resources of each worker, as in Kubernetes: `cpu: "4"`, `memory: 8Gi`, `nvidia.com/gpu: "1"`."""
    checkpoint: str = ""
    """Location of the job's checkpoints: a directory that all hosts share, a claim, or an object store's path."""
    working_directory: str = ""
    """"": the directory of submission, or that of the image."""
    duration: float | None = None
    """The user's estimate of the run time with the requested workers, in seconds."""
    deadline: float | None = None
    """Seconds from submission until the job should be done."""
    application: str = ""
    """Name of the model or program that is trained: jobs of one application are expected to scale alike."""
    retries: int = 0
    """Number of times that a failed job is restarted."""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Settings that only one place understands, by the name of the place."""

    @property
    def is_elastic(self) -> bool:
        return self.workers.min < self.workers.max if self.elastic is None else self.elastic

    @property
    def how_suspended(self) -> str:
        """How the job is suspended: one of `SUSPENSIONS`."""
        return self.suspension or ("signal" if self.checkpoint else "never")

    def check(self) -> None:
        """Check that the job is valid.

        Raises:
            BadSpec: it is not. The `message` begins with the wrong key.
        """
        for problem, hint in _problems(self):
            raise BadSpec(problem, hint)


def _problems(spec: JobSpec) -> list[tuple[str, str]]:
    """Return the problems of a specification, each with a hint."""
    checks = (_wrong_names(spec), _wrong_workers(spec.workers, spec.elastic), _wrong_ending(spec), _wrong_values(spec))
    return [wrong for check in checks for wrong in check]


def _wrong_names(spec: JobSpec) -> list[tuple[str, str]]:
    wrongs = []
    if spec.name and not _NAME.fullmatch(spec.name):
        wrongs.append(
            (f"name: {spec.name!r} is not a valid name of a job", "at most 48 lowercase letters, digits, . and -")
        )
    if not spec.command or not spec.command[0]:
        wrongs.append(("command: there is no command to run", "such as command: [python, train.py]"))
    if not spec.queue:
        wrongs.append(("queue: the name is empty", "omit the key for the default queue"))
    wrongs += [
        (f"environment: {name!r} is not a valid name of a variable", "letters, digits and underscores")
        for name in spec.environment
        if not _VARIABLE.fullmatch(name)
    ]
    texts = [("command", word) for word in spec.command]
    texts += [(f"environment.{name}", value) for name, value in spec.environment.items()]
    wrongs += [
        (f"{key}: {text!r} contains a null character", "omit it: no program can be passed one")
        for key, text in texts
        if "\0" in text
    ]
    return wrongs


def _wrong_workers(workers: Workers, elastic: bool | None) -> list[tuple[str, str]]:
    if workers.min < 1:
        return [(f"workers: a job cannot run with {workers.min}", "at least 1")]
    if workers.max < workers.min:
        return [(f"workers: max {workers.max} is below min {workers.min}", "use min <= max")]
    if not workers.min <= workers.replicas <= workers.max:
        limits = f"min {workers.min} to max {workers.max}"
        return [(f"workers: replicas {workers.replicas} is outside of {limits}", "use min <= replicas <= max")]
    if elastic is False and workers.min != workers.max:
        return [
            (
                f"workers: a range of {workers.min} to {workers.max} needs an elastic job",
                "omit `elastic: false`, or give one number",
            )
        ]
    return []


def _wrong_ending(spec: JobSpec) -> list[tuple[str, str]]:
    wrongs = []
    if spec.suspension and spec.suspension not in SUSPENSIONS:
        wrongs.append((f"suspension: {spec.suspension!r} is unknown", one_of(spec.suspension, SUSPENSIONS)))
    if spec.signal not in SIGNALS:
        wrongs.append((f"signal: {spec.signal!r} cannot be sent", one_of(spec.signal, SIGNALS)))
    if not 0 <= spec.grace < math.inf:
        wrongs.append((f"grace: {spec.grace:g} s is not a valid time", "a number of seconds, 0 or more"))
    return wrongs


def _wrong_values(spec: JobSpec) -> list[tuple[str, str]]:
    wrongs = []
    for key, value in (("duration", spec.duration), ("deadline", spec.deadline)):
        if value is not None and not 0 < value < math.inf:
            wrongs.append((f"{key}: {value:g} s is not a valid time", "a number of seconds above 0"))
    if spec.retries < 0:
        wrongs.append((f"retries: {spec.retries} is negative", "0: a failed job is not restarted"))
    wrongs += [
        (f"{key}: {number} is too large", f"at most {_MOST}")
        for key, number in (("workers", spec.workers.max), ("priority", spec.priority), ("retries", spec.retries))
        if abs(number) > _MOST
    ]
    return wrongs


def parse_workers(text: str) -> Workers:
    """Parse a number or a range of workers: `4` or `2:8`. For a range, the number requested is the upper one.

    Raises:
        BadSpec: the text is neither.

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
    """Return a job as plain data, without the fields that have their defaults."""
    plain: dict[str, Any] = msgspec.to_builtins(spec)
    return plain


def from_dict(plain: Mapping[str, Any]) -> JobSpec:
    """Return the job that plain data describe, whether `to_dict` made them or a person wrote them.

    Raises:
        BadSpec: the data are not a valid job. The `message` begins with the wrong key, such as `workers.min: ...`.
    """
    data = _check_keys({key: value for key, value in plain.items() if value is not None}, JobSpec, "")
    if "command" not in data:
        raise BadSpec("command: it is missing", "such as command: [python, train.py]")
    data["workers"] = _workers(data.get("workers"))
    if isinstance(data["command"], str):
        raise BadSpec("command: it must be a list of words, not one string", "such as command: [python, train.py]")
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
            raise BadSpec(f"{where}{key}: unknown key", one_of(str(key), known))
    return dict(data)


def _workers(given: Any) -> dict[str, Any]:
    """Return `min`, `max` and `replicas` from any notation of them."""
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
    """Return a mapping of strings. YAML's numbers become strings."""
    if not isinstance(given, Mapping):
        raise BadSpec(f"{key}: {given!r} is not a mapping", f"such as {key}: {{NAME: value}}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise BadSpec(f"{key}.{name}: {value!r} is not a string", 'put it in quotes: "..."')
    return {str(name): str(value) for name, value in given.items()}


def _reworded(said: str) -> tuple[str, str]:
    """Turn msgspec's `Expected `int`, got `str` - at `$.priority`` into a sentence that begins with the key."""
    what, _, where = said.partition(" - at `$")
    key = where.strip("`").lstrip(".").replace("[...]", "")
    words = what.replace("`", "").replace("Expected ", "expected ").replace("int", "a number", 1)
    return f"{key or 'job'}: {words}", "docs/how-to/queue.md has all keys"
