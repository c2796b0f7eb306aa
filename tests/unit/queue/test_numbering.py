"""Which slots of a host each job has."""

from __future__ import annotations

from msgspec.structs import replace

from farandole.control.jobs.spec import from_dict
from farandole.control.queue.model import Owner, Phase, QueueHost, QueueJob, SlotNumbers
from farandole.control.queue.numbering import numbered

HOSTS = [QueueHost("h1", 4), QueueHost("h2", 2)]


def job(name: str, slots: dict[str, int], **more: object) -> QueueJob:
    spec = from_dict({"command": ["true"]})
    running = QueueJob(name, spec, Owner(1, 1, "ann"), 0.0, phase=Phase.RUNNING, slots=slots, held=slots)
    return replace(running, **more)


def numbers(jobs: dict[str, QueueJob]) -> dict[str, dict[str, str]]:
    return {name: each.slot_numbers for name, each in jobs.items()}


def test_jobs_on_a_host_have_different_slots() -> None:
    jobs = numbered({"a": job("a", {"h1": 2}), "b": job("b", {"h1": 2, "h2": 1})}, HOSTS)
    assert numbers(jobs) == {"a": {"h1": "0,1/4"}, "b": {"h1": "2,3/4", "h2": "0/2"}}
    assert numbered(jobs, HOSTS) == jobs


def test_a_job_that_grows_keeps_its_slots_and_gets_free_ones() -> None:
    jobs = numbered({"a": job("a", {"h1": 1}), "b": job("b", {"h1": 1})}, HOSTS)
    jobs["a"] = replace(jobs["a"], slots={"h1": 3}, held={"h1": 3})
    assert numbers(numbered(jobs, HOSTS)) == {"a": {"h1": "0,2,3/4"}, "b": {"h1": "1/4"}}


def test_slots_are_given_back_from_the_last_one_on_and_only_when_nothing_is_there() -> None:
    jobs = numbered({"a": job("a", {"h1": 4})}, HOSTS)
    jobs["a"] = replace(jobs["a"], slots={"h1": 2})
    jobs = numbered({**jobs, "b": job("b", {})}, HOSTS)
    assert jobs["a"].numbered == {"h1": SlotNumbers((0, 1, 2, 3), 4)}
    assert numbers(jobs)["a"] == {"h1": "0,1/4"}
    jobs["a"] = replace(jobs["a"], held={"h1": 2})
    jobs["b"] = replace(jobs["b"], slots={"h1": 2}, held={"h1": 2})
    assert numbers(numbered(jobs, HOSTS)) == {"a": {"h1": "0,1/4"}, "b": {"h1": "2,3/4"}}


def test_a_job_without_an_attempt_has_none() -> None:
    jobs = numbered({"a": job("a", {"h1": 2})}, HOSTS)
    jobs["a"] = replace(jobs["a"], phase=Phase.SUCCEEDED, slots={}, held={})
    assert numbered(jobs, HOSTS)["a"].numbered == {}


def test_slots_of_a_host_that_has_become_smaller_are_used_twice() -> None:
    jobs = numbered({"a": job("a", {"h1": 2}), "b": job("b", {"h1": 1})}, HOSTS)
    smaller = [QueueHost("h1", 3)]
    assert numbers(numbered({**jobs, "d": job("d", {"h1": 1})}, smaller))["d"] == {"h1": "0/3"}
