"""MPIJobs in a Queue of ours, named by `schedulingPolicy.queue`: all their pods or none, beside TrainingJobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from played_cluster import PlayedCluster
from played_queues import PlayedJob, queue
from public_mpi_jobs import container, job, pod

from farandole.control.kubernetes import kinds, times
from farandole.control.kubernetes.admission import Admission
from farandole.control.kubernetes.model import Observed, Options
from farandole.control.kubernetes.mpijob.reconcile import reconcile
from farandole.control.kubernetes.operator.queue_keeper import QueueKeeper
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey
from farandole.control.kubernetes.queues.decide import Admissions, decide
from farandole.control.kubernetes.queues.queue_spec import read_queues
from farandole.control.kubernetes.queues.queued_jobs import JobAndPods, queued_jobs


class QueuedCluster(PlayedCluster):
    """An MPIJob of `workers` hosts with two slots each."""

    def __init__(self, name: str, queue_: str, workers: int, at: float, **spec: Any) -> None:
        policy = {"schedulingPolicy": {"queue": queue_}, **spec.pop("runPolicy", {})}
        launcher, worker = {"template": pod(container("l"))}, {"template": pod(container("w"))}
        body = job(name, "v2beta1", launcher, worker, workers, slotsPerWorker=2, runPolicy=policy, **spec)
        body["metadata"]["creationTimestamp"] = times.to_text(at)
        super().__init__(body, reconcile, Options())
        self.admission: Admission | None = None

    def observed(self) -> Observed:
        return replace(super().observed(), admission=self.admission)

    @property
    def hosts(self) -> int:
        return len(self.pods("worker"))


def look(queues: list[dict[str, Any]], *jobs: QueuedCluster, beside: list[JobAndPods] | None = None) -> Admissions:
    """Look at everything until nothing changes, as the operator does."""
    for _ in range(6):
        forest = read_queues(queues)
        found = [JobAndPods(each.job, list(each.pods().values())) for each in jobs if each.job is not None]
        admissions = decide(forest, queued_jobs(forest, [*found, *(beside or [])]), jobs[0].now)
        for each in jobs:
            if each.job is not None:
                each.admission = admissions.of_job.get(f"mpijob/{each.job['metadata']['name']}")
                each.settle()
                each.run_all()
    return admissions


def test_job_has_all_pods_or_none_and_the_next_follows() -> None:
    main = [queue("main", slots=6, policy="fcfs")]
    first, second = QueuedCluster("a", "main", 2, 1.0), QueuedCluster("b", "main", 2, 2.0)
    look(main, first, second)
    assert (first.hosts, second.hosts) == (2, 0)
    assert first.condition("Running") == ("True", "MPIJobRunning")
    assert second.condition("Suspended") == ("True", "Queued")
    assert second.job is not None
    (told,) = [each for each in second.job["status"]["conditions"] if each["type"] == "Suspended"]
    assert told["message"] == "waits: 2 of 6 slots are free, it needs 4"
    assert second.events.count("Queued") == 1
    first.end("a-launcher")
    for index in range(2):
        first.end(f"a-worker-{index}")
    look(main, first, second)
    assert second.hosts == 2
    assert second.condition("Suspended") == ("False", "MPIJobResumed")
    assert second.condition("Running") == ("True", "MPIJobRunning")


def test_mpi_job_and_training_job_of_same_name_share_slots() -> None:
    main = [queue("main", slots=5, policy="fcfs")]
    limits = {"min": 3, "max": 3, "replicas": 3}
    other = PlayedJob("a", 0.0, 10.0, workers=limits, queue="main")
    mine = QueuedCluster("a", "main", 2, 5.0)
    admissions = look(main, mine, beside=[JobAndPods(other.job, [])])
    assert admissions.of_job["a"].workers == 3 and admissions.of_job["mpijob/a"].workers == 0
    assert mine.hosts == 0
    other.job["spec"]["cancel"] = True
    look(main, mine, beside=[JobAndPods(other.job, [])])
    assert mine.hosts == 2


def test_unknown_queue_name_is_left_to_gang_scheduler() -> None:
    main = [queue("main", slots=1, policy="fcfs")]
    job_ = QueuedCluster("a", "volcanos", 2, 1.0)
    look(main, job_)
    assert job_.hosts == 2
    assert job_.job is not None and "admission" not in job_.job["status"]


def test_running_job_is_never_preempted_and_suspended_job_releases_slots() -> None:
    main = [queue("main", slots=4, policy="preempt")]
    low = QueuedCluster("low", "main", 2, 1.0)
    look(main, low)
    urgent = QueuedCluster("high", "main", 2, 2.0)
    look(main, low, urgent)
    assert (low.hosts, urgent.hosts) == (2, 0)
    assert low.job is not None
    low.job["spec"]["runPolicy"]["suspend"] = True
    look(main, low, urgent)
    assert low.condition("Suspended") == ("True", "MPIJobSuspended")
    assert urgent.hosts == 0, "pods that are about to go hold their slots"
    low.vanish_terminating()
    look(main, low, urgent)
    assert urgent.hosts == 2
    low.job["spec"]["runPolicy"]["suspend"] = False
    look(main, low, urgent)
    assert low.hosts == 0 and low.condition("Suspended") == ("True", "Queued")


def test_launcher_with_slots_and_single_launcher_are_counted() -> None:
    main = [queue("main", slots=9, policy="fcfs")]
    both = QueuedCluster("a", "main", 2, 1.0, runLauncherAsWorker=True)
    alone = QueuedCluster("b", "main", 2, 2.0)
    assert alone.job is not None
    del alone.job["spec"]["mpiReplicaSpecs"]["Worker"]
    admissions = look(main, both, alone)
    assert {name: each.workers for name, each in admissions.of_job.items()} == {"mpijob/a": 6, "mpijob/b": 2}
    assert admissions.figures["main"].used == 8


def test_keeper_distinguishes_mpi_jobs_from_training_jobs() -> None:
    looked: list[JobKey] = []
    store = ClusterStore(lambda key: None)
    keeper = QueueKeeper(store, lambda key, delay: looked.append(key))
    mine = QueuedCluster("a", "main", 2, 1.0)
    other = PlayedJob("a", 0.0, 10.0, queue="main")
    assert mine.job is not None
    mine.job["metadata"] |= {"namespace": "team"}
    mpi, training = (JobKey(kind.plural, "team", "a") for kind in (kinds.MPI_JOB, kinds.TRAINING_JOB))
    main = JobKey(kinds.QUEUE.plural, "team", "main")
    store.put_job(mpi, mine.job)
    store.put_job(training, other.job)
    store.put_job(main, queue("main", slots=9, policy="fcfs"))
    for key, workers in ((mpi, 4), (training, 1)):
        observed = store.observed(key, 10.0, Options())
        assert observed is not None
        told = keeper.decided(key, observed).admission
        assert told is not None and told.workers == workers
    assert set(looked) == {training, main}
