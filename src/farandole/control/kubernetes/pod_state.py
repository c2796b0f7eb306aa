"""The state of a pod, from its object: whether it runs, why it does not, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farandole.control.kubernetes import names, times
from farandole.control.kubernetes.model import Object

# Reasons for which a container waits, with the reason for which the job is then Blocked.
_WAITING = {
    "ErrImagePull": "ImageUnavailable",
    "ImagePullBackOff": "ImageUnavailable",
    "InvalidImageName": "ImageUnavailable",
    "ErrImageNeverPull": "ImageUnavailable",
    "RegistryUnavailable": "ImageUnavailable",
    "CreateContainerConfigError": "ConfigUnavailable",
    "CreateContainerError": "ContainerCannotStart",
    "RunContainerError": "ContainerCannotStart",
    "CrashLoopBackOff": "ContainerCannotStart",
}
# SIGKILL and SIGTERM.
_KILLED = (137, 143)
# Reasons of a failed pod that the cluster has caused.
_DISRUPTIONS = {
    "Evicted",
    "Preempting",
    "Preempted",
    "NodeLost",
    "NodeShutdown",
    "Shutdown",
    "Terminated",
    "NodeAffinity",
}


def role(pod: Object) -> str:
    """Return launcher or worker; "" if it is neither."""
    return str(_labels(pod).get(names.ROLE_LABEL, ""))


def number(pod: Object, label: str) -> int | None:
    """Return the number in a label; None if there is none."""
    text = str(_labels(pod).get(label, ""))
    return int(text) if text.isdecimal() else None


def phase(pod: Object) -> str:
    """Return Pending, Running, Succeeded, Failed or Unknown."""
    return str(_status(pod).get("phase", "Pending"))


def terminating(pod: Object) -> bool:
    """Return whether it is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def finished(pod: Object) -> bool:
    """Return whether all its containers have ended for good."""
    return phase(pod) in ("Succeeded", "Failed")


def running(pod: Object) -> bool:
    """Return whether it runs, and is not being deleted."""
    return phase(pod) == "Running" and not terminating(pod)


def ready(pod: Object) -> bool:
    """Return whether it runs and its readiness probes succeed."""
    return running(pod) and _condition(pod, "Ready").get("status") == "True"


def gated(pod: Object) -> bool:
    """Return whether it has a scheduling gate, such as that of a queue that has not admitted it."""
    return phase(pod) == "Pending" and _condition(pod, "PodScheduled").get("reason") == "SchedulingGated"


def waits_to_start(pod: Object) -> bool:
    """Return whether it has a node, but has not started there."""
    return phase(pod) == "Pending" and not terminating(pod) and bool(_mapping(pod.get("spec")).get("nodeName"))


def created_at(pod: Object) -> float:
    """Return when it was created, in seconds since 1970; 0 if unknown."""
    return times.from_text(pod["metadata"].get("creationTimestamp")) or 0.0


def restarts(pod: Object) -> int:
    """Return how many times the kubelet has restarted one of its containers."""
    counts = [item.get("restartCount") for item in _containers(pod)]
    return sum(count for count in counts if isinstance(count, int))


def ended_at(pod: Object) -> float | None:
    """Return when the last of its containers ended, in seconds since 1970; None if none has."""
    return max(_times(pod, "finishedAt"), default=None)


def lifetime(pod: Object) -> float:
    """Return how long its ended containers ran, in seconds; 0 if unknown."""
    ended = ended_at(pod)
    return 0.0 if ended is None else max(0.0, ended - min(_times(pod, "startedAt"), default=ended))


def _times(pod: Object, key: str) -> list[float]:
    ended = [_mapping(_mapping(item.get("state")).get("terminated")) for item in _containers(pod)]
    found = [times.from_text(item.get(key)) for item in ended]
    return [time for time in found if time is not None]


@dataclass(frozen=True)
class Failure:
    """The failure of a pod.

    Attributes:
        what: the reason, the exit code and the last line of output, in a few words.
        disrupted: whether the cluster caused it (eviction, preemption, loss of the node), not the program.
        exit_code: exit code of the failed container; None if no container has one.
        lines: the container's last lines of output that the kubelet reports; "" if it was killed, because they do not
            give the reason then.
        killed: whether it was killed for another reason than lack of memory.
    """

    what: str
    disrupted: bool
    exit_code: int | None
    lines: str = ""
    killed: bool = False


def failure(pod: Object) -> Failure:
    """Return the failure of a failed pod."""
    status = _status(pod)
    reason = str(status.get("reason") or "")
    disrupted = reason in _DISRUPTIONS or _condition(pod, "DisruptionTarget").get("status") == "True"
    ended = [_mapping(_mapping(item.get("state")).get("terminated")) for item in _containers(pod)]
    worst = next((item for item in ended if item.get("exitCode")), {})
    code = worst.get("exitCode")
    killed = _is_kill(worst)
    lines = "" if killed else str(worst.get("message") or "").strip()
    what = _in_few_words(reason or str(worst.get("reason") or ""), code, lines or str(status.get("message") or ""))
    return Failure(what, disrupted, code if isinstance(code, int) else None, lines, killed)


def _in_few_words(reason: str, code: object, lines: str) -> str:
    last = (lines.strip().splitlines() or [""])[-1].strip()[-300:]
    parts = [reason, f"exit code {code}" if isinstance(code, int) else "", last]
    return ", ".join(part for part in parts if part) or "no reason was given"


def crashed(pod: Object) -> str:
    """Return in a few words how a container ended whose restart the kubelet delays; "" if there is none."""
    for before in _delayed(pod):
        return _in_few_words(str(before.get("reason") or ""), before.get("exitCode"), str(before.get("message") or ""))
    return ""


def delayed_after_kill(pod: Object, lifetime: float) -> bool:
    """Return whether the kubelet delays the restart of a container that was killed after it had run for a while.

    Args:
        pod: the pod.
        lifetime: seconds for which the container must have run. A container that was out of memory does not count.
    """
    return any(_is_kill(before) and _seconds(before) >= lifetime for before in _delayed(pod))


def _delayed(pod: Object) -> list[Mapping[str, Any]]:
    """Return the last ends of the containers whose restart the kubelet delays."""
    return [
        _mapping(_mapping(item.get("lastState")).get("terminated"))
        for item in _containers(pod)
        if _mapping(_mapping(item.get("state")).get("waiting")).get("reason") == "CrashLoopBackOff"
    ]


def _is_kill(ended: Mapping[str, Any]) -> bool:
    return ended.get("exitCode") in _KILLED and ended.get("reason") != "OOMKilled"


def _seconds(ended: Mapping[str, Any]) -> float:
    began, over = times.from_text(ended.get("startedAt")), times.from_text(ended.get("finishedAt"))
    return 0.0 if began is None or over is None else over - began


def hindrance(pod: Object) -> tuple[str, str] | None:
    """Return why a pod does not start (a word and a sentence); None if nothing prevents it."""
    if finished(pod) or terminating(pod):
        return None
    name = pod["metadata"]["name"]
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return "Unschedulable", f"pod {name}: {scheduled.get('message') or 'no node fits'}"
    for item in _containers(pod):
        waiting = _mapping(_mapping(item.get("state")).get("waiting"))
        reason = _WAITING.get(str(waiting.get("reason")))
        if reason:
            where = f"pod {name}, container {item.get('name')}, image {item.get('image')}"
            words = [waiting["reason"], str(waiting.get("message") or "").strip(), crashed(pod)]
            return reason, f"{where}: {': '.join(word for word in words if word)}"[:1000]
    return None


def _labels(pod: Object) -> Mapping[str, Any]:
    return _mapping(pod["metadata"].get("labels"))


def _status(pod: Object) -> Mapping[str, Any]:
    return _mapping(pod.get("status"))


def _containers(pod: Object) -> list[Mapping[str, Any]]:
    lists = [_status(pod).get(key) or [] for key in ("initContainerStatuses", "containerStatuses")]
    return [_mapping(item) for found in lists for item in found]


def _condition(pod: Object, kind: str) -> Mapping[str, Any]:
    found = [item for item in _status(pod).get("conditions") or [] if item.get("type") == kind]
    return found[0] if found else {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
