"""`python -m tests.kubernetes.random_events`: jobs on which random events fall, and what must be true of them then.

Two of the jobs keep books of their samples, one of them with PyTorch; the third one is suspended and resumed. An event
falls on a job or on all, and the next one comes when all jobs train again. So every loss is survivable: no event takes
the last worker that has a job's state, and none takes a launcher while there is no API server, or while what a
successor has to know is not saved there. What must be true in the end: every job has succeeded; the first two have used
each sample once; nothing of them is left in the cluster or on this machine.

The same seed chooses the same events; what they fall on also depends on what there is at that moment.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from step_books import Books
from tests.kubernetes import binaries, operators
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.errors import ClusterError
from tests.kubernetes.operators import RunningOperator
from tests.kubernetes.training_jobs import Watched, book_keeping_job
from tests.kubernetes.way import Way

NAMESPACE = "random-events"
_RECOVERY_SECONDS = 240.0
_AWAY_SECONDS = 3.0
_PAUSE_SECONDS = 0.2
_MOST_TOLD = 20
# The number of events after which all workers must have joined.
_FULL_EVERY = 10
_KINDS = "pods,services,configmaps,secrets,roles,rolebindings,serviceaccounts,networkpolicies,trainingjobs"


class RandomEvents:
    """Three jobs, and what is done to them.

    Attributes:
        counts: how many events of each kind fell.
        slowest: the longest time after an event until all jobs trained again, and after which.

    Args:
        operator: of the cluster.
        way: on which the operator reaches the API server.
        folder: for the books of the jobs.
        say: takes a line for each event.
    """

    def __init__(
        self,
        cluster: Cluster,
        operator: RunningOperator,
        way: Way,
        seed: int,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.slowest = (0.0, "nothing")
        self._cluster, self._operator, self._way, self._say = cluster, operator, way, say
        self._random = random.Random(seed)
        self._books = {name: Books([folder / name]) for name in ("exact-1", "exact-2", "paused")}
        self._jobs = {name: Watched(cluster, NAMESPACE, name) for name in self._books}
        self._newest = dict.fromkeys(self._books, 0)
        self._folder = folder

    def start(self) -> None:
        """Start the jobs, and return when all train."""
        for name in self._jobs:
            spread = {"topologySpread": "kubernetes.io/hostname"}
            torch = name == "exact-1"
            job = book_keeping_job(name, self._folder / name, torch=torch, pause=_PAUSE_SECONDS, **spread)
            self._cluster.apply(*job, namespace=NAMESPACE)
        for job in self._jobs.values():
            job.await_size(3, _RECOVERY_SECONDS)

    def run(self, count: int) -> None:
        """Let this number of events happen.

        Raises:
            ClusterError: a job did not train again.
        """
        for number in range(1, count + 1):
            event = self._random.choice(EVENTS)
            job = self._jobs[self._random.choice(("exact-1", "exact-2"))]
            name = event.__name__.replace("_", " ")
            began = time.monotonic()
            try:
                if event(self, job) is False:
                    name = f"no {name}"
                self._await_all()
                if number % _FULL_EVERY == 0:
                    self._await_full()
            except ClusterError as error:
                raise ClusterError(f"event {number}, {name} ({job.name}), at {time.strftime('%T')}: {error}") from None
            seconds = time.monotonic() - began
            self.counts[name] += 1
            self.slowest = max(self.slowest, (seconds, name))
            self._say(f"{number}: {name} ({job.name}): {seconds:.1f} s")

    def end(self) -> list[str]:
        """Let all end, and return what is wrong."""
        wrong = []
        for name, job in self._jobs.items():
            self._books[name].stop()
            job.await_state("Succeeded", _RECOVERY_SECONDS)
            if name != "paused":
                wrong += [f"{name}: {each}" for each in self._books[name].wrongs()]
            self._cluster.kubectl("delete", "trainingjob", name, "-n", NAMESPACE)
        self._cluster.until(lambda: not self._left(), "nothing is left", _RECOVERY_SECONDS, self._left)
        return wrong

    def _left(self) -> str:
        """Return what is left of the jobs in the cluster, and of their pods on this machine."""
        mine = ["-n", NAMESPACE, "-l", "farandole.dev/job", "-o", "name", "--ignore-not-found"]
        return "\n".join([*self._cluster.kubectl("get", _KINDS, *mine).split(), *self._cluster.left_of_pods()])

    def _await_all(self) -> None:
        """Wait until each job has a launcher, and two workers that take steps: then it survives the next loss."""
        for name, job in self._jobs.items():
            self._cluster.until(
                lambda job=job: self._is_whole(job), f"{name} has a launcher and workers", _RECOVERY_SECONDS, job.story
            )
            self._await_steps(name, job)

    def _await_steps(self, name: str, job: Watched) -> None:
        """Wait for a step of two workers or more that has begun just now: who is lost takes no part in it."""
        books, goal = self._books[name], time.time() + 2 * _PAUSE_SECONDS

        def taken() -> bool:
            latest = books.latest()
            return bool(latest["at"] >= goal and latest["size"] >= 2)

        self._cluster.until(taken, f"workers of {name} take steps", _RECOVERY_SECONDS, job.story)
        if name != "paused":
            self._check_that_it_goes_on(name, job)

    def _check_that_it_goes_on(self, name: str, job: Watched) -> None:
        """See that the training has not begun anew, which would use all samples again."""
        step = int(self._books[name].latest()["step"])
        if step < self._newest[name]:
            raise ClusterError(f"{name} is at step {step}, and was at {self._newest[name]}:\n{job.story()}")
        self._newest[name] = step

    def _is_whole(self, job: Watched) -> bool:
        status = job.status
        running = [each for each in status.get("conditions") or [] if each["type"] == "Running"]
        # Nobody misses the launcher, and it is there.
        led = bool(running and running[0]["status"] == "True" and running[0]["reason"] == "Training")
        size = int((status.get("progress") or {}).get("size") or 0)
        launchers = job.ready("launcher")
        return led and bool(launchers) and self._is_saved(launchers[-1]) and min(size, len(job.running("worker"))) >= 2

    def _is_saved(self, launcher: str) -> bool:
        """Return whether another launcher could follow this one; if none could, its workers would end with it."""
        log = self._cluster.kubectl("logs", "-n", NAMESPACE, launcher, check=False)
        return "failover state cannot be written" not in log.rpartition("failover state is written again")[2]

    def _await_full(self) -> None:
        """Wait until each job trains with all workers that it wants: none is forgotten."""
        for name, job in self._jobs.items():
            self._cluster.until(
                lambda job=job: self._is_full(job), f"{name} has all workers", _RECOVERY_SECONDS, job.story
            )

    def _is_full(self, job: Watched) -> bool:
        status = job.status
        size = int((status.get("progress") or {}).get("size") or 0)
        return self._is_whole(job) and size == status.get("wanted") == len(job.pods("worker"))

    def _lose_worker(self, job: Watched, how: Callable[[str, str], None]) -> None:
        """Do something to a worker pod, and return when it is lost."""
        victim = self._random.choice(job.running("worker"))
        how(NAMESPACE, victim)
        lost = f"{victim} does not run any more"
        self._cluster.until(lambda: victim not in job.running("worker"), lost, _RECOVERY_SECONDS, job.story)

    # --- events -------------------------------------------------------------------------------------------------

    def worker_killed(self, job: Watched) -> None:
        """All programs of a worker pod are killed."""
        self._lose_worker(job, self._cluster.kill_pod)

    def worker_evicted(self, job: Watched) -> None:
        """A worker pod is evicted."""
        self._lose_worker(job, self._cluster.evict)

    def worker_evicted_for_memory(self, job: Watched) -> None:
        """The node of a worker pod has no memory for it."""
        self._lose_worker(job, self._cluster.evict_for_pressure)

    def launcher_killed(self, job: Watched) -> None:
        """The launcher is killed; the kubelet starts it again."""
        before = self._launcher(job)
        self._cluster.kill_pod(NAMESPACE, before[0])
        self._await_another_launcher(job, before)

    def launcher_evicted(self, job: Watched) -> None:
        """The launcher pod is evicted."""
        before = self._launcher(job)
        self._cluster.evict(NAMESPACE, before[0])
        self._await_another_launcher(job, before)

    def launcher_and_worker_killed(self, job: Watched) -> None:
        """The launcher and a worker are killed at the same moment."""
        before = self._launcher(job)
        self._lose_worker(job, lambda namespace, victim: self._cluster.kill_pods(namespace, before[0], victim))
        self._await_another_launcher(job, before)

    def _launcher(self, job: Watched) -> tuple[str, int]:
        """Return the name of the launcher pod, and how often its program was started again."""
        for pod in reversed(job.pods("launcher")):
            for status in pod["status"].get("containerStatuses") or []:
                return pod["metadata"]["name"], status["restartCount"]
        return "", 0

    def _await_another_launcher(self, job: Watched, before: tuple[str, int]) -> None:
        what = f"another launcher has {job.name}"
        self._cluster.until(lambda: self._launcher(job) != before, what, _RECOVERY_SECONDS, job.story)

    def node_lost(self, _: Watched) -> bool:
        """A node loses its power, and comes back later; False: on each node some job has more than half its workers.

        Such a job would wait for `launcherAbsenceSeconds`, until it is certain that the silent ones have ended.
        """
        self._await_full()
        placed = {
            name: Counter(pod["spec"]["nodeName"] for pod in job.pods("worker") if pod["status"]["phase"] == "Running")
            for name, job in self._jobs.items()
        }
        safe = [node for node in self._cluster.nodes if all(2 * on[node] <= on.total() for on in placed.values())]
        if not safe:
            return False
        node = self._random.choice(safe)
        self._cluster.lose_node(node)
        self._cluster.until(lambda: not self._is_ready(node), f"{node} is known to be lost", _RECOVERY_SECONDS)
        time.sleep(self._random.uniform(0, _AWAY_SECONDS))
        self._cluster.start_node(node)
        return True

    def _is_ready(self, node: str) -> bool:
        conditions = self._cluster.api.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def operator_killed(self, job: Watched) -> None:
        """The operator is killed, and a worker with it, and another operator comes later."""
        self._operator.kill()
        self._lose_worker(job, self._cluster.kill_pod)
        time.sleep(self._random.uniform(0, _AWAY_SECONDS))
        self._operator.start()

    def api_server_restarted(self, _: Watched) -> None:
        """All watches are cut, and nothing can be written for a while."""
        self._cluster.control.kill_api_server()
        time.sleep(self._random.uniform(0, 2 * _AWAY_SECONDS))
        self._cluster.control.start_api_server()

    def watches_cut(self, job: Watched) -> None:
        """All connections of the operator are cut, and a worker is killed whose end no watch tells."""
        self._way.cut()
        self._lose_worker(job, self._cluster.kill_pod)

    def scaled(self, job: Watched) -> None:
        """Somebody wants another number of workers."""
        self._cluster.kubectl(
            "scale", "-n", NAMESPACE, f"trainingjob/{job.name}", f"--replicas={self._random.randint(2, 3)}"
        )

    def suspended_and_resumed(self, _: Watched) -> None:
        """The third job gives all its pods back, and goes on later."""
        job = self._jobs["paused"]
        job.patch(suspend=True)
        self._cluster.until(lambda: not self._pods(job), "its pods are gone", _RECOVERY_SECONDS, job.story)
        job.await_state("Suspended", _RECOVERY_SECONDS)
        job.patch(suspend=False)

    def _pods(self, job: Watched) -> list[object]:
        return self._cluster.pods(NAMESPACE, f"farandole.dev/job={job.name}")

    def quota_reached(self, job: Watched) -> None:
        """A worker is killed while the namespace has no room for another pod; later it has."""
        # One that has a worker too many would not miss it.
        self._cluster.kubectl("scale", "-n", NAMESPACE, f"trainingjob/{job.name}", "--replicas=3")
        job.await_size(3, _RECOVERY_SECONDS)
        hard = {"pods": "1"}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": hard}}
        self._cluster.apply(quota, namespace=NAMESPACE)
        used = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/full"
        self._cluster.until(lambda: (self._cluster.api.get(used).get("status") or {}).get("hard"), "the quota counts")
        self._lose_worker(job, self._cluster.kill_pod)

        def is_told() -> bool:
            found = job.status.get("conditions") or []
            return any(each["type"] == "Blocked" and each["status"] == "True" for each in found)

        self._cluster.until(is_told, "it says what is in its way", _RECOVERY_SECONDS, job.story)
        self._cluster.api.delete(used)


EVENTS: tuple[Callable[[RandomEvents, Watched], bool | None], ...] = (
    RandomEvents.worker_killed,
    RandomEvents.worker_evicted,
    RandomEvents.worker_evicted_for_memory,
    RandomEvents.launcher_killed,
    RandomEvents.launcher_evicted,
    RandomEvents.launcher_and_worker_killed,
    RandomEvents.node_lost,
    RandomEvents.operator_killed,
    RandomEvents.api_server_restarted,
    RandomEvents.watches_cut,
    RandomEvents.scaled,
    RandomEvents.suspended_and_resumed,
    RandomEvents.quota_reached,
)


def main() -> None:
    """Run it, and say what was done and what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", type=int, default=200)
    options = parser.parse_args()
    if (reason := binaries.why_not()) is not None:
        sys.exit(f"error: {reason}")
    began = time.monotonic()
    with Cluster(3) as cluster, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        operators.install(cluster)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        cluster.api.create("/api/v1/namespaces", namespace)
        with (
            Way(cluster.control.url) as way,
            operators.operator(cluster, url=way.url) as operator,
        ):
            cluster.until(lambda: operator.leads, "the operator leads")
            say = functools.partial(print, flush=True)
            events = RandomEvents(cluster, operator, way, options.seed, Path(folder), say)
            events.start()
            events.run(options.events)
            wrong = events.end()
    fell = ", ".join(f"{count} {name}" for name, count in sorted(events.counts.items()))
    print(f"{options.events} events in {time.monotonic() - began:.0f} s, seed {options.seed}: {fell}")
    print(f"longest until all jobs trained again: {events.slowest[0]:.1f} s, {events.slowest[1]}")
    if wrong:
        sys.exit("error: " + "\n".join([*wrong[:_MOST_TOLD], f"{len(wrong)} in all"]))
    print("all jobs succeeded; each sample was used once; nothing is left in the cluster or of pods on this machine")


if __name__ == "__main__":
    main()
