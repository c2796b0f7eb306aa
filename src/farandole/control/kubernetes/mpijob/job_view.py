"""A view of an MPIJob's pods by role and index, for the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from farandole.control.kubernetes import names, pod_state
from farandole.control.kubernetes.model import Object, Observed
from farandole.control.kubernetes.mpijob import hosts
from farandole.control.kubernetes.mpijob.history import History
from farandole.control.kubernetes.mpijob.job_spec import AT_STARTUP, WAIT_FOR_WORKERS, MpiJobSpec


@dataclass(frozen=True)
class MpiJobView:
    """The observed pods, with the spec and the history.

    Attributes:
        launcher: the pod of the current attempt.
        workers: worker pods by index, including those beyond the wanted number.
    """

    observed: Observed
    spec: MpiJobSpec
    history: History
    launcher: Object | None
    workers: Mapping[int, Object]

    @classmethod
    def of(cls, observed: Observed, spec: MpiJobSpec, history: History) -> MpiJobView:
        """Sort the pods of a job by role and index."""
        launcher, workers = None, {}
        for pod in observed.pods:
            index = pod_state.number(pod, names.INDEX_LABEL)
            if pod_state.role(pod) == names.WORKER and index is not None:
                workers[index] = pod
            elif pod_state.role(pod) == names.LAUNCHER:
                attempt = pod_state.number(pod, names.ATTEMPT_LABEL)
                launcher = pod if attempt == history.attempt else launcher
        return cls(observed, spec, history, launcher, workers)

    @property
    def launcher_succeeded(self) -> bool:
        """Return whether the launcher has succeeded: one that is being deleted may exit with 0 before it is done."""
        pod = self.launcher
        return pod is not None and pod_state.phase(pod) == "Succeeded" and not pod_state.terminating(pod)

    @property
    def launcher_running(self) -> bool:
        """Return whether the launcher runs."""
        return self.launcher is not None and pod_state.running(self.launcher)

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Indexes of workers that should run but do not."""
        return tuple(
            index
            for index in range(self.spec.workers)
            if index not in self.workers or not pod_state.running(self.workers[index])
        )

    @property
    def all_running(self) -> bool:
        """Return whether all workers run."""
        return not self.missing

    @property
    def whole(self) -> bool:
        """Return whether the launcher and all its former workers run; new workers of a growing job may be missing."""
        if not self.launcher_running:
            return False
        if not self.history.formed:
            return self.all_running
        return all(index >= self.history.formed for index in self.missing)

    @cached_property
    def ready(self) -> tuple[int, ...]:
        """Indexes of workers to use: they are ready, and not leaving."""
        return tuple(
            index for index, pod in sorted(self.workers.items()) if index < self.spec.workers and pod_state.ready(pod)
        )

    @property
    def gathers_first(self) -> bool:
        """Return whether the launcher waits for the workers.

        With a gang scheduler the launcher is a member of the gang, which starts together or not at all. A restarted
        launcher always waits.
        """
        if self.history.attempt or self.spec.launcher_creation == WAIT_FOR_WORKERS:
            return True
        return not (self.observed.options.gang_scheduler or self.spec.launcher_creation == AT_STARTUP)

    def loss(self) -> tuple[str, str]:
        """Return a word and a sentence about the part of a running job that does not run any more."""
        lost = [hosts.worker_name(self.observed.job, index) for index in self.missing if index < self.history.formed]
        if lost:
            more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
            return "WorkerLost", f"Lost: {', '.join(lost[:5])}{more}. They are started again."
        return "LauncherLost", f"The launcher does not run. It is started again, as attempt {self.history.attempt}."
