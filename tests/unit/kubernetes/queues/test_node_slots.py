"""Queues that count slots on nodes: their number, their jobs, and the effects of lost nodes."""

from __future__ import annotations

from typing import Any

import pytest
from played_queues import PlayedNamespace, node, queue

from farandole.control.jobs.spec import from_dict
from farandole.control.kubernetes import conditions
from farandole.control.kubernetes.accounting import Admitted, read_account
from farandole.control.kubernetes.kinds import QUEUE
from farandole.control.kubernetes.operator.queue_keeper import QueueKeeper
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey
from farandole.control.kubernetes.queues import node_slots
from farandole.control.kubernetes.queues.queue_spec import read_queues
from farandole.control.kubernetes.queues.queued_job import QueuedJob
from farandole.control.scheduler.cluster import Node

GPU = "nvidia.com/gpu"


def team(*nodes: dict[str, Any], **spec: Any) -> PlayedNamespace:
    namespace = PlayedNamespace(queue("main", **{"resource": GPU, "policy": "fcfs", **spec}))
    namespace.nodes = list(nodes)
    return namespace


def places(namespace: PlayedNamespace, job: str) -> Any:
    return read_account(namespace.jobs[job].status, 0.0).nodes


def hosts_wished_for(pod: dict[str, Any]) -> list[str]:
    terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    (wish,) = terms["preferredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = wish["preference"]["matchExpressions"]
    assert expression["key"] == "kubernetes.io/hostname"
    return list(expression["values"])


def test_jobs_get_slots_of_nodes_and_prefer_these_nodes() -> None:
    namespace = team(node("a", gpu="4"), node("b", gpu="4"))
    first = namespace.submit("first", workers=4, queue="main")
    namespace.submit("second", workers=3, queue="main")
    namespace.submit("third", workers=2, queue="main")
    namespace.settle()
    assert namespace.has() == {"first": 4, "second": 3}
    assert namespace.reason("third") == "waits: 1 of 8 slots are free, it needs 2"
    assert len(places(namespace, "first")) == 1, "one node has room for all of it"
    assert places(namespace, "first").keys().isdisjoint(places(namespace, "second"))
    workers = [pod for pod in first.pods if "-worker-" in pod["metadata"]["name"]]
    assert {tuple(hosts_wished_for(pod)) for pod in workers} == {tuple(places(namespace, "first"))}
    assert namespace.queues[0]["status"]["used"] == 7


def test_pods_are_counted_on_their_actual_nodes() -> None:
    namespace = team(node("a", gpu="2"), node("b", gpu="2"))
    job = namespace.submit("first", workers=2, queue="main")
    namespace.settle()
    for pod, name in zip([pod for pod in job.pods if "-worker-" in pod["metadata"]["name"]], "ab", strict=True):
        pod["spec"] = {**pod["spec"], "nodeName": name}
    namespace.submit("second", workers=2, queue="main")
    namespace.settle()
    assert places(namespace, "second") == {"a": 1, "b": 1}


def test_cordoned_node_has_no_slots_and_running_jobs_keep_theirs() -> None:
    namespace = team(node("a", gpu="2"), node("b", gpu="2"))
    namespace.submit("first", workers=4, queue="main")
    namespace.settle()
    assert namespace.has() == {"first": 4}
    namespace.nodes[1]["spec"]["unschedulable"] = True
    namespace.submit("second", workers=1, queue="main")
    namespace.settle()
    assert namespace.has() == {"first": 4}
    assert namespace.jobs["second"].status["state"] == "Waiting"
    namespace.nodes[0]["status"]["allocatable"][GPU] = "8"
    namespace.settle()
    assert namespace.has() == {"first": 4, "second": 1}


@pytest.mark.parametrize("lost", [False, True], ids=["cordoned", "lost"])
def test_job_waits_for_a_node_that_accepts_no_pods_now(lost: bool) -> None:
    namespace = team(node("a", gpu="2"), node("b", ready=not lost, gpu="2"))
    namespace.nodes[1]["spec"]["unschedulable"] = not lost
    namespace.submit("first", workers=4, queue="main")
    namespace.submit("second", workers=5, queue="main")
    namespace.settle()
    short = "slots of one type, and no type has more than"
    assert namespace.reason("first") == f"waits for b, which cannot take work now: it needs 4 {short} 2 now"
    assert namespace.reason("second") == f"can never start: it needs 5 {short} 4"
    namespace.nodes[1] = node("b", gpu="2")
    namespace.settle()
    assert namespace.has() == {"first": 4}


def test_jobs_wait_and_keep_slots_until_nodes_are_known() -> None:
    namespace = team(node("a", gpu="2"))
    namespace.submit("first", workers=2, queue="main")
    namespace.settle()
    namespace.nodes = []
    namespace.submit("second", workers=1, queue="main")
    namespace.settle()
    assert namespace.has() == {"first": 2}
    said = "resource: no node that accepts pods is known to have 1 nvidia.com/gpu"
    assert namespace.reason("second") == f"waits: queue main cannot be used: {said}"
    assert not conditions.holds(namespace.queues[0]["status"]["conditions"], "Ready")


def test_slots_are_counted_by_resource_and_labels() -> None:
    nodes = [
        node("small", cpu="3900m"),
        node("large", cpu="16"),
        node("lost", ready=False, cpu="16"),
        node("other", cpu="16"),
        node("bad", cpu="many"),
    ]
    nodes[0]["metadata"]["labels"]["pool"] = nodes[1]["metadata"]["labels"]["pool"] = "train"
    (spec,) = [queue("main", resource="cpu", resourcePerSlot="1500m", nodes={"pool": "train"})]
    tree = read_queues([spec], nodes).trees["main"]
    assert tree.nodes == (Node("large", "slot", 10), Node("small", "slot", 2))
    assert tree.root.slots == 12
    low = queue("low", parent="main", limit=1)
    assert read_queues([spec, low], nodes).trees["main"].queues["low"].limit == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"resource": GPU, "slots": 3}, "slots: they are counted on nodes, because a resource is set"),
        ({"resource": GPU, "resourcePerSlot": "none"}, "resourcePerSlot: 'none' is not an amount above 0"),
        ({"resource": GPU, "resourcePerSlot": 0}, "resourcePerSlot: 0 is not an amount above 0"),
        ({"resource": GPU, "resourcePerSlot": True}, "resourcePerSlot: True is not an amount above 0"),
        ({"resource": 3}, "resource: 3 is not text"),
        ({"resource": GPU, "nodes": {"a": 1}}, "nodes: {'a': 1} is not a mapping of texts to texts"),
        ({"resource": GPU, "nodes": {"pool": "x"}}, "resource: no node of those with pool=x that accepts pods"),
        ({"parent": "top", "resource": GPU}, "resource: only the queue at the top sets that"),
    ],
)
def test_unusable_queue_has_a_reason(spec: dict[str, Any], said: str) -> None:
    found = read_queues([queue("top", slots=1), queue("main", **spec)], [node("a", gpu="1")])
    assert found.faults["main"].startswith(said)


def test_slots_of_lost_nodes_are_kept_apart() -> None:
    spec = from_dict({"command": ["train"]})
    jobs = [
        QueuedJob("a", spec, 0.0, Admitted(slots=2, nodes={"gone": 2})),
        QueuedJob("b", spec, 0.0, Admitted(slots=1), places={"here": 1}),
    ]
    cluster, has = node_slots.seat((Node("here", "slot", 1),), jobs)
    assert [each.slots for each in cluster.nodes] == [1, 2]
    assert node_slots.by_name(cluster, has["b"]) == {"here": 1}
    assert node_slots.by_name(cluster, has["a"]) == {}


def test_account_stores_nodes_and_survives_malformed_status() -> None:
    account = Admitted(since=1.0).given(2, 2.0, {"a": 2})
    assert read_account({"admission": account.as_data()}, 0.0).nodes == {"a": 2}
    assert account.given(0, 3.0).nodes == {}
    moved = account.given(2, 3.0, {"b": 2})
    assert (moved.nodes, moved.since, moved.restarts) == ({"b": 2}, account.since, account.restarts)
    assert account.given(2, 3.0, {}) == account.given(2, 3.0, {"a": 2}) == account
    for nodes in (3, ["a"], {"a": "2"}, {"a": -1}, {"a": True}):
        assert read_account({"admission": {"workers": 2, "nodes": nodes}}, 0.0).nodes == {}


def test_queues_are_reconciled_when_nodes_change_but_not_at_heartbeats() -> None:
    looked: list[JobKey] = []
    store = ClusterStore(lambda key: None)
    keeper = QueueKeeper(store, lambda key, delay: looked.append(key))
    main = JobKey(QUEUE.plural, "team", "main")
    store.put_job(main, queue("main", slots=2))
    assert not keeper.counts_nodes
    counted = queue("main", resource=GPU)
    counted["metadata"]["resourceVersion"] = "2"
    store.put_job(main, counted)
    assert keeper.counts_nodes
    keeper.set_nodes([node("a", gpu="2")])
    assert looked == [main]
    beat = node("a", gpu="2")
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = "later"
    beat["metadata"]["resourceVersion"] = "9"
    keeper.set_nodes([beat])
    assert looked == [main]
