"""The settings of a queue (policy, time slices, queues, quotas): in its database, and adjustable while it runs.

Examples of what a user sets:

    policy=rr  quantum=600  ageing=3600  keep=604800
    queue.vision=weight=2,quota=8,limit=16  user.ann=slots=4,jobs=20  users=slots=8  admins=ann,bob
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from farandole.base.spelling import one_of
from farandole.control.jobs.errors import Refused
from farandole.control.jobs.spec import DEFAULT_QUEUE
from farandole.control.scheduler.errors import SchedulerError
from farandole.control.scheduler.policies import DEFAULT_POLICY, make_policy
from farandole.control.scheduler.rules import Queue, Rules, check_quotas, parse_queues


class Quota(msgspec.Struct, frozen=True):
    """The limits of one user; None means no limit."""

    slots: int | None = None
    jobs: int | None = None
    """The number of jobs that wait, run or are suspended."""


class QueueSettings(msgspec.Struct, frozen=True):
    """All settings of a queue."""

    policy: str = DEFAULT_POLICY
    quantum: float = Rules.quantum
    """Length of a time slice, in seconds."""
    ageing: float = Rules.ageing
    """Seconds of waiting that raise a job's priority by one."""
    round: float = Rules.round
    """Seconds between two decisions of policies that also decide when nothing has happened."""
    keep: float = 7 * 24 * 3600.0
    """Seconds until a job that has ended is removed."""
    restart_cost: float = 0.0
    """Seconds without progress that policies assume after each change of a job's slots."""
    queues: Mapping[str, str] = msgspec.field(default_factory=dict)
    """For each queue by name: the text that `farandole simulate --queue` takes after the colon."""
    quotas: Mapping[str, Quota] = msgspec.field(default_factory=dict)
    """By user; "" is the quota of all other users."""
    admins: tuple[str, ...] = ()
    """Users with all rights, in addition to root and the user whom the queue runs as."""

    def quota(self, user: str) -> Quota:
        return self.quotas.get(user) or self.quotas.get("") or Quota()

    def rules(self, users: Sequence[tuple[str, str]] = ()) -> Rules:
        """Return the rules for policies.

        Args:
            users: pairs of a queue and a user; a user with a quota gets a sub-queue.
        """
        queues = parse_queues([f"{name}:{text}" for name, text in self.queues.items()])
        for queue, user in users:
            slots = self.quota(user).slots
            if slots is not None:
                for each in (Queue(queue), Queue(user_queue(queue, user), parent=queue, limit=slots)):
                    queues.setdefault(each.name, each)
        return Rules(self.quantum, self.ageing, queues, self.round)

    def check(self) -> None:
        """Check that the settings are valid.

        Raises:
            Refused: they are not.
        """
        try:
            make_policy(self.policy, self.rules())
        except SchedulerError as error:
            raise Refused(error.message, error.hint) from None
        for key in ("quantum", "ageing", "round", "keep"):
            if not getattr(self, key) > 0:
                raise Refused(f"{key}: {getattr(self, key):g} s is not a valid time", "use a number of seconds above 0")
        if self.restart_cost < 0:
            raise Refused(
                f"restart_cost: {self.restart_cost:g} s is not a valid time", "use 0 or a positive number of seconds"
            )

    def check_queue(self, queue: str) -> None:
        """Check that a queue exists.

        Raises:
            Refused: it does not.
        """
        known = [DEFAULT_QUEUE, *(name for name in self.queues if name != DEFAULT_QUEUE)]
        if queue not in known:
            raise Refused(f"there is no queue {queue}", one_of(queue, known))


def user_queue(queue: str, user: str) -> str:
    return f"{queue}/{user}"


_TIMES = ("quantum", "ageing", "round", "keep", "restart_cost")


def changed(settings: QueueSettings, texts: Sequence[str], slots: int | None = None) -> QueueSettings:
    """Return the settings after changes such as `policy=rr` or `user.ann=slots=4`; an empty value removes an entry.

    Args:
        settings: the settings to change.
        texts: the changes, as `KEY=VALUE`.
        slots: the slots of all hosts of the queue; None accepts any quota.

    Raises:
        Refused: there is no such setting, or its value is not valid.
    """
    before = settings.queues
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise Refused(f"{text!r} is not a setting and its value", "such as policy=rr, or queue.vision=limit=8")
        settings = _changed(settings, key, value)
    settings.check()
    if slots is not None:
        # Hosts may be removed later: a quota that was set before must not prevent other changes.
        new = [queue for name, queue in settings.rules().queues.items() if settings.queues[name] != before.get(name)]
        try:
            check_quotas(new, slots)
        except SchedulerError as error:
            raise Refused(error.message, "add hosts first: farandole queue hosts add h9:4") from None
    return settings


def _changed(settings: QueueSettings, key: str, value: str) -> QueueSettings:
    group, _, name = key.partition(".")
    changes: dict[str, Any]
    if key == "policy":
        changes = {"policy": value or DEFAULT_POLICY}
    elif key in _TIMES:
        changes = {key: _seconds(key, value)}
    elif key == "admins":
        changes = {"admins": tuple(filter(None, value.split(",")))}
    elif group == "queue" and name:
        changes = {"queues": _with(settings.queues, name, value, value.strip("-"))}
    elif key == "users" or (group == "user" and name):
        changes = {"quotas": _with(settings.quotas, name, value, _quota(key, value))}
    else:
        raise _unknown(key)
    return msgspec.structs.replace(settings, **changes)


def _unknown(key: str) -> Refused:
    known = ["policy", *_TIMES, "admins", "queue.NAME", "user.NAME", "users"]
    return Refused(f"there is no setting {key}", one_of(key, known))


def _with(before: Mapping[str, Any], name: str, text: str, value: Any) -> dict[str, Any]:
    """Return a mapping with a value, or without it if the text is empty. `-` stands for a queue without keys."""
    return {**{key: kept for key, kept in before.items() if key != name}, **({name: value} if text else {})}


def _seconds(key: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    # They are stored as JSON, which has no infinity.
    if not math.isfinite(seconds):
        raise Refused(f"{key}: {value!r} is not a number of seconds", f"such as {key}=600")
    return seconds


def _quota(key: str, text: str) -> Quota:
    values = {}
    for pair in filter(None, text.split(",")):
        name, _, number = pair.partition("=")
        if name not in ("slots", "jobs") or not number.isdecimal():
            raise Refused(f"{key}: {pair!r} is not a quota", f"such as {key}=slots=4,jobs=20")
        values[name] = int(number)
    return Quota(**values)
