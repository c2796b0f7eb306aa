"""Queues of TrainingJobs: the workers of jobs, the reasons, and the state that survives the operator."""

from __future__ import annotations

from typing import Any

import pytest
from played_queues import PlayedNamespace, queue

from farandole.control.kubernetes import conditions
from farandole.control.kubernetes.accounting import Admitted, read_account
from farandole.control.kubernetes.kinds import QUEUE, TRAINING_JOB
from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.operator.queue_keeper import QueueKeeper
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey
from farandole.control.kubernetes.queues.queue_spec import read_queues

CHECKPOINT = {"checkpoint": "/shared/c"}


def test_waiting_jobs_have_a_reason() -> None:
    team = PlayedNamespace(queue("main", slots=2, policy="fcfs"))
    for name in ("a", "b", "c"):
        team.submit(name, workers=2, queue="main")
        team.settle()
        team.now += 1.0
    assert team.has() == {"a": 2}
    assert team.reason("b") == "waits: 0 of 2 slots are free, it needs 2"
    assert team.reason("c") == "waits behind b: 0 of 2 slots are free"
    assert team.jobs["b"].status["state"] == "Waiting" and team.jobs["b"].pods == []
    status = team.queues[0]["status"]
    assert (status["used"], status["running"], status["waiting"]) == (2, 1, 2)
    assert conditions.holds(status["conditions"], "Ready")
    team.pass_to(team.next())
    team.settle()
    assert team.has() == {"b": 2}


def test_jobs_without_queue_or_with_kueue_label_run_at_once() -> None:
    team = PlayedNamespace(queue("main", slots=1, policy="fcfs"))
    team.submit("free", workers=3)
    team.submit("kueues", workers=3, queue="main").job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    team.submit("ours", workers=1, queue="main")
    team.settle()
    assert team.has() == {"free": 3, "kueues": 3, "ours": 1}
    assert "admission" not in team.jobs["free"].status
    team.queues.append(queue("default", slots=2, policy="fcfs"))
    team.submit("more", workers=2)
    team.settle()
    # What was there before its queue was, and cannot be suspended, is left alone; what comes waits.
    assert team.has() == {"free": 3, "kueues": 3, "ours": 1}
    assert team.jobs["more"].status["state"] == "Waiting"


def test_without_queues_nothing_is_decided() -> None:
    team = PlayedNamespace()
    team.submit("a", workers=2, queue="vision")
    team.settle()
    assert team.has() == {"a": 2} and "admission" not in team.jobs["a"].status


def test_unknown_queue_is_reported_with_suggestion() -> None:
    team = PlayedNamespace(queue("vision", slots=2), queue("speech", slots=2))
    team.submit("a", queue="visoin")
    team.settle()
    assert team.has() == {}
    said = "waits: there is no queue visoin in this namespace; did you mean vision? There are speech, vision"
    assert team.reason("a") == said


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "slots: a queue without a parent needs the number of workers that it shares, such as slots: 16"),
        ({"slots": 0}, "slots: 0 is not a whole number from 1 to 1000000"),
        ({"slots": True}, "slots: True is not a whole number"),
        ({"slots": 2, "weight": -1}, "weight: -1 is not a number above 0"),
        ({"slots": 2, "policy": "fsfc"}, "policy: there is no policy fsfc; There are fcfs, sjf"),
        ({"slots": 2, "policy": 3}, "policy: 3 is not text"),
        ({"parent": "nobody"}, "parent: there is no queue nobody in this namespace that can be used"),
        ({"parent": "main"}, "parent: main is below main, which is a cycle"),
    ],
)
def test_unusable_queue_and_its_jobs_have_a_reason(spec: dict[str, Any], said: str) -> None:
    team = PlayedNamespace(queue("main", **spec))
    team.submit("a", queue="main")
    team.settle()
    (ready,) = team.queues[0]["status"]["conditions"]
    assert ready["status"] == "False" and said in ready["message"]
    assert team.reason("a").startswith(f"waits: queue main cannot be used: {said}")
    for key in ("slots", "policy"):
        faults = read_queues(
            [queue("main", slots=2), queue("low", parent="main", **{key: 1 if key == "slots" else "rr"})]
        )
        assert faults.faults == {"low": f"{key}: only the queue at the top sets that, for all below it; omit it here"}


def test_jobs_keep_workers_when_queue_becomes_unusable() -> None:
    team = PlayedNamespace(queue("main", slots=2))
    team.submit("a", workers=2, queue="main", **CHECKPOINT)
    team.settle()
    team.queues[0]["spec"]["policy"] = "nonsense"
    team.settle()
    assert team.has() == {"a": 2}
    del team.queues[:]
    team.settle()
    assert team.has() == {"a": 2}


def test_preempting_job_gets_workers_once_their_pods_are_gone() -> None:
    team = PlayedNamespace(queue("main", slots=2, policy="preempt"))
    low = team.submit("low", work=100.0, workers=2, queue="main", **CHECKPOINT)
    team.settle()
    low.holds = True
    team.now += 5.0
    team.submit("high", workers=2, queue="main", priority=9)
    team.settle()
    assert low.workers == 0 and len(low.pods) == 3 and team.has() == {}
    assert team.reason("high") == "waits: its 2 slots are still being released by other jobs"
    team.restart_operator()
    team.settle()
    assert team.has() == {}
    low.let_go()
    team.settle()
    assert team.has() == {"high": 2}
    assert conditions.holds(low.status["conditions"], "Suspended")
    team.pass_to(team.now + 5.0)
    team.settle()
    assert team.has() == {"low": 2} and low.status["history"]["attempt"] == 1
    account = read_account(low.status, 0.0)
    assert (account.slots, account.restarts, account.served_before, account.ran_before) == (2, 1, 10.0, 5.0)
    assert not conditions.holds(low.status["conditions"], "Suspended")


def test_job_that_cannot_be_suspended_keeps_workers() -> None:
    team = PlayedNamespace(queue("main", slots=2, policy="preempt"))
    team.submit("low", workers=2, queue="main")
    team.settle()
    team.submit("high", workers=2, queue="main", priority=9)
    team.settle()
    assert team.has() == {"low": 2}


def test_elastic_jobs_share_and_grow() -> None:
    team = PlayedNamespace(queue("main", slots=6, policy="equal"))
    team.submit("a", work=60.0, workers=1, most=6, queue="main")
    team.settle()
    assert team.has() == {"a": 6}
    team.submit("b", work=60.0, workers=1, most=6, queue="main")
    team.settle()
    assert team.has() == {"a": 3, "b": 3}
    team.jobs["b"].job["spec"]["cancel"] = True
    team.settle()
    assert team.has() == {"a": 6}


def test_slots_held_by_ended_job_are_not_free() -> None:
    team = PlayedNamespace(queue("main", slots=2, policy="fcfs"))
    first = team.submit("a", workers=2, queue="main")
    team.settle()
    first.holds = True
    first.job["spec"]["suspend"] = True
    team.now += 1.0
    team.submit("b", workers=2, queue="main")
    team.settle()
    assert team.has() == {}
    first.let_go()
    team.settle()
    assert team.has() == {"b": 2}
    first.job["spec"]["suspend"] = False
    team.settle()
    assert team.has() == {"b": 2} and team.reason("a").startswith("waits")


def test_quotas_are_borrowed_and_given_back() -> None:
    pytest.importorskip("scipy")
    queues = [
        queue("lab", slots=4, policy="adaptive"),
        queue("red", parent="lab", quota=2),
        queue("blue", parent="lab", quota=2),
    ]
    team = PlayedNamespace(*queues)
    team.submit("red", work=100.0, workers=1, most=4, queue="red", **CHECKPOINT)
    for _ in range(3):  # It grows as far as it has been shown to.
        team.settle()
        team.now += 61.0
    assert team.has() == {"red": 4}
    team.submit("blue", workers=2, queue="blue")
    team.settle()
    assert team.has() == {"red": 2, "blue": 2}


def test_priorities_of_queues_are_added() -> None:
    team = PlayedNamespace(queue("top", slots=1, policy="priority"), queue("urgent", parent="top", priority=5))
    team.submit("now", queue="top")
    team.settle()
    team.now += 1.0
    team.submit("plain", queue="top", priority=3)
    team.submit("urgent", queue="urgent")
    team.settle()
    team.pass_to(team.next())
    team.settle()
    assert team.has() == {"urgent": 1}


def test_workers_come_in_whole_pods() -> None:
    team = PlayedNamespace(queue("main", slots=7, policy="equal"))
    job = team.submit("a", work=60.0, workers=2, most=7, queue="main", slotsPerPod=2)
    team.settle()
    assert job.workers == 3  # Pods of two workers each: the seventh slot fits none.


def test_malformed_account_is_read() -> None:
    for status in (None, 3, {}, {"admission": []}, {"admission": {"workers": -1, "since": "x", "ran": True}}):
        assert read_account(status, 5.0) == Admitted(since=5.0)
    account = Admitted(since=5.0).given(2, 7.0).given(4, 10.0).given(0, 11.0)
    assert (account.served_before, account.ran_before, account.restarts, account.largest) == (10.0, 4.0, 1, 4)
    assert read_account({"admission": account.as_data()}, 5.0) == account


def test_keeper_reconciles_jobs_whose_admission_changed() -> None:
    looked: list[JobKey] = []
    store = ClusterStore(lambda key: None)
    keeper = QueueKeeper(store, lambda key, delay: looked.append(key))
    team = PlayedNamespace(queue("main", slots=2, policy="fcfs"))
    team.submit("a", workers=2, queue="main")
    team.submit("b", workers=2, queue="main")
    for name, each in team.jobs.items():
        store.put_job(JobKey(TRAINING_JOB.plural, "team", name), each.job)
    key = JobKey(QUEUE.plural, "team", "main")
    first = JobKey(TRAINING_JOB.plural, "team", "a")

    def decided(key: JobKey) -> Any:
        observed = store.observed(key, team.now, Options())
        assert observed is not None
        return keeper.decided(key, observed)

    assert decided(first).admission is None
    store.put_job(key, team.queues[0])
    assert decided(key).figures.running == 1
    assert {each.name for each in looked} == {"a", "b"}
    looked.clear()
    assert decided(first).admission.workers == 2 and looked == []
    store.remove_job(key)
    assert decided(first).admission is None
    assert {each.name for each in looked} == {"a", "b"}


def test_slots_of_deleted_job_are_given_to_others() -> None:
    looked: list[JobKey] = []
    store = ClusterStore(lambda key: None)
    keeper = QueueKeeper(store, lambda key, delay: looked.append(key))
    team = PlayedNamespace(queue("main", slots=1))
    job = JobKey(TRAINING_JOB.plural, "team", "a")
    keeper.gone(job)  # Without any queue, that is nothing.
    assert looked == []
    main = JobKey(QUEUE.plural, "team", "main")
    store.put_job(main, team.queues[0])
    observed = store.observed(main, team.now, Options())
    assert observed is not None
    keeper.decided(main, observed)
    keeper.gone(job)
    assert looked == [main]
