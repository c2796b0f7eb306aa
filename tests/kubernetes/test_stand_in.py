"""The stand-in for the kubelet does what the tests of jobs rely on."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.host import needed_inside
from tests.hosts.namespaces import in_network
from tests.hosts.switch import Switch
from tests.kubernetes import binaries
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node.container import root_script
from tests.kubernetes.node.network import PodNetwork


def pod(name: str, script: str, *, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod that runs a shell script."""
    only = {"name": "main", "image": "none", "command": ["sh", "-c", script], **(container or {})}
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [only], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": body}


def await_phase(cluster: Cluster, namespace: str, name: str, *phases: str) -> dict[str, Any]:
    """Return the pod when it is in one of the phases."""

    def found() -> dict[str, Any] | None:
        each = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return each if each["status"].get("phase") in phases else None

    return cluster.until(found, f"pod {name} is {' or '.join(phases)}")


def is_ready(cluster: Cluster, namespace: str, name: str) -> bool:
    """Return whether a pod is ready."""
    status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", []))


def test_pods_reach_each_other_by_name_and_are_isolated_from_the_machine(cluster: Cluster, namespace: str) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    service["spec"] = {"clusterIP": "None", "selector": {"app": "server"}, "ports": [{"port": 8000}]}
    server = pod("server", "cd /tmp && echo hello > page && exec python3 -m http.server 8000")
    server["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    wait = "until getent hosts web >/dev/null; do sleep 0.1; done"
    asks = (
        f"{wait}; curl -s http://web.{namespace}.svc.cluster.local:8000/page; ls /tmp | wc -l; ls /sys/class/net; id -u"
    )
    client = pod("client", asks, securityContext={"runAsUser": 1000, "runAsNonRoot": True})
    cluster.apply(service, server, client, namespace=namespace)

    await_phase(cluster, namespace, "client", "Succeeded")
    said = cluster.log(namespace, "client").split()

    assert said[:2] == ["hello", str(len(needed_inside(["/tmp"])))]
    assert said[-1] == "1000"
    nodes = {each["spec"]["nodeName"] for each in cluster.pods(namespace)}
    assert nodes <= set(cluster.nodes)


def test_nodes_keep_their_hardware_address() -> None:
    if (reason := binaries.why_not()) is not None:
        pytest.skip(reason)
    with contextlib.closing(Switch(("pods",))) as switch:
        node = PodNetwork(switch.pid, 1)
        before = node.inside(_hardware_address)
        # The lowest there is: a bridge without an address of its own would take it.
        in_network(switch.pid, ["ip", "-batch", "-"], ["link add low address 02:00:00:00:00:00 type veth peer far"])
        in_network(switch.pid, ["ip", "-batch", "-"], ["link set dev low master pods up"])
        assert node.inside(_hardware_address) == before


def _hardware_address() -> str:
    words = ["ip", "-json", "link", "show", "dev", "pods"]
    shown = subprocess.run(words, capture_output=True, check=True, timeout=30).stdout
    return str(json.loads(shown)[0]["address"])


def test_containers_have_python_and_this_checkout_if_these_are_in_private_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (reason := binaries.why_not()) is not None:
        pytest.skip(reason)
    volume, root = tmp_path / "volume", tmp_path / "root"
    volume.mkdir()
    root.mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp") as prefix:
        Path(prefix, "python").touch()
        monkeypatch.setattr(sys, "prefix", prefix)
        script = root_script(root, tmp_path / "begun", [(str(volume), "/tmp", False)], read_only=True)
        words = ["unshare", "--mount", "--uts", "sh", "-c", script, "sh", "name", "ls", prefix]
        said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said == "python\n"


def test_readiness_follows_probe_and_end_follows_program(cluster: Cluster, namespace: str) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1}
    body = pod("slow", "trap 'exit 7' TERM; while :; do sleep 0.1; done", container={"readinessProbe": probe})
    cluster.apply(body, namespace=namespace)
    await_phase(cluster, namespace, "slow", "Running")
    assert not is_ready(cluster, namespace, "slow")

    cluster.kubectl("exec", "-n", namespace, "slow", "--", "touch", "/tmp/ready")
    cluster.until(lambda: is_ready(cluster, namespace, "slow"), "the pod is ready")
    cluster.kubectl("exec", "-n", namespace, "slow", "--", "kill", "-TERM", "1")

    ended = await_phase(cluster, namespace, "slow", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (7, "Error")


def test_exec_forwards_input_output_and_exit_code(cluster: Cluster, namespace: str) -> None:
    cluster.apply(pod("idle", "sleep 1000", terminationGracePeriodSeconds=0), namespace=namespace)
    await_phase(cluster, namespace, "idle", "Running")

    said = cluster.kubectl(
        "exec", "-i", "-n", namespace, "idle", "--", "sh", "-c", "tr a-z A-Z; hostname", stdin="abc\n"
    )
    failed = cluster.kubectl("exec", "-n", namespace, "idle", "--", "sh", "-c", "exit 7", check=False)

    assert said.split() == ["ABC", "idle"]
    assert "exit code 7" in failed


def test_configmap_changes_arrive_late_and_atomically(cluster: Cluster, namespace: str) -> None:
    def config(text: str) -> dict[str, Any]:
        data = {"one": text, "two": text}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}, "data": data}

    volumes = [{"name": "config", "configMap": {"name": "config"}}]
    mounts = [{"name": "config", "mountPath": "/etc/config"}]
    script = "cat /etc/config/*; echo; until grep -q new /etc/config/one; do sleep 0.05; done; cat /etc/config/*"
    cluster.apply(
        config("old"), pod("reader", script, container={"volumeMounts": mounts}, volumes=volumes), namespace=namespace
    )
    await_phase(cluster, namespace, "reader", "Running")

    began = time.monotonic()
    cluster.apply(config("new"), namespace=namespace)
    await_phase(cluster, namespace, "reader", "Succeeded")

    assert time.monotonic() - began > 1.0
    assert cluster.log(namespace, "reader").split() == ["oldold", "newnew"]


def test_pod_waits_for_secret_which_only_its_group_reads(cluster: Cluster, namespace: str) -> None:
    volumes = [{"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}}]
    container = {"volumeMounts": [{"name": "key", "mountPath": "/key", "readOnly": True}]}
    security = {"runAsUser": 1000, "fsGroup": 2000, "runAsNonRoot": True}
    reader = pod("reader", "cat /key/word; id -G", container=container, volumes=volumes, securityContext=security)
    cluster.apply(reader, namespace=namespace)

    def reason() -> str:
        status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/reader")["status"]
        states = status.get("containerStatuses", [{"state": {}}])
        return states[0]["state"].get("waiting", {}).get("reason", "")

    cluster.until(lambda: reason() == "CreateContainerConfigError", "the pod waits for its secret")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"word": "sesame "}}
    cluster.apply(secret, namespace=namespace)

    await_phase(cluster, namespace, "reader", "Succeeded")
    assert cluster.log(namespace, "reader").split() == ["sesame", "1000", "2000"]


def test_memory_limit_is_enforced(cluster: Cluster, namespace: str) -> None:
    greedy = pod(
        "greedy", "exec python3 -c 'bytearray(200 << 20)'", container={"resources": {"limits": {"memory": "40Mi"}}}
    )
    cluster.apply(greedy, namespace=namespace)

    status = await_phase(cluster, namespace, "greedy", "Failed", "Succeeded")["status"]

    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_program_is_restarted_by_policy(cluster: Cluster, namespace: str) -> None:
    volumes = [{"name": "kept", "emptyDir": {}}]
    container = {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}
    script = "test -e /kept/once && exit 0; touch /kept/once; exit 3"
    cluster.apply(
        pod("again", script, container=container, volumes=volumes, restartPolicy="OnFailure"), namespace=namespace
    )

    status = await_phase(cluster, namespace, "again", "Succeeded")["status"]["containerStatuses"][0]

    assert (status["restartCount"], status["lastState"]["terminated"]["exitCode"]) == (1, 3)


def test_killed_pod_has_signal_exit_code_and_failed_pod_its_last_lines(cluster: Cluster, namespace: str) -> None:
    told = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    cluster.apply(
        pod("victim", "echo begins; exec sleep 100", container=told),
        pod("fails", "echo first; echo last; exit 3", container=told),
        namespace=namespace,
    )
    await_phase(cluster, namespace, "victim", "Running")
    cluster.until(lambda: cluster.log(namespace, "victim") == "begins\n", "it has begun")
    cluster.kill_pod(namespace, "victim")
    ends = {
        name: await_phase(cluster, namespace, name, "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
        for name in ("victim", "fails")
    }
    assert (ends["victim"]["exitCode"], ends["victim"]["message"]) == (137, "begins\n")
    assert (ends["fails"]["exitCode"], ends["fails"]["message"]) == (3, "first\nlast\n")
    stamped = cluster.kubectl("logs", "-n", namespace, "fails", "--timestamps").splitlines()
    assert [line.partition(" ")[2] for line in stamped] == ["first", "last"]
    assert stamped == sorted(set(stamped))


def test_deletion_respects_grace_period(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        pod("polite", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done", terminationGracePeriodSeconds=60),
        pod("stubborn", "trap '' TERM; echo up; while :; do sleep 0.1; done", terminationGracePeriodSeconds=2),
        namespace=namespace,
    )
    for name in ("polite", "stubborn"):
        await_phase(cluster, namespace, name, "Running")
        cluster.until(lambda name=name: "up" in cluster.log(namespace, name), f"{name} takes signals")

    began = time.monotonic()
    for name in ("polite", "stubborn"):
        cluster.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")
    cluster.until(lambda: not cluster.pods(namespace, "app=polite"), "the polite pod is gone", 20)
    cluster.until(lambda: not cluster.pods(namespace), "both pods are gone", 20)

    assert time.monotonic() - began >= 2


def test_evicted_pod_has_failed_and_missing_image_is_reported(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        pod("victim", "trap 'exit 0' TERM; while :; do sleep 0.1; done"),
        pod("imageless", "true", container={"image": "absent:1"}),
        namespace=namespace,
    )
    await_phase(cluster, namespace, "victim", "Running")

    cluster.evict_for_pressure(namespace, "victim")
    status = await_phase(cluster, namespace, "victim", "Failed")["status"]
    assert status["reason"] == "Evicted"

    def reason() -> str:
        found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/imageless")["status"]
        return found.get("containerStatuses", [{"state": {}}])[0]["state"].get("waiting", {}).get("reason", "")

    cluster.until(lambda: reason() == "ImagePullBackOff", "the missing image is told")


def test_pods_of_lost_node_end_at_once_and_are_given_up_later(cluster: Cluster, namespace: str) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    service["spec"] = {"clusterIP": "None", "selector": {"app": "server"}, "ports": [{"port": 8000}]}
    tolerations = [
        {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for why in ("not-ready", "unreachable")
    ]
    # Of an ordinary user, as pods of jobs are.
    user = {"nodeName": "node-3", "tolerations": tolerations, "securityContext": {"runAsUser": 1000}}
    server = pod("server", "exec python3 -m http.server 8000", **user)
    cluster.apply(service, server, namespace=namespace)
    await_phase(cluster, namespace, "server", "Running")
    try:
        cluster.until(lambda: cluster.processes_of_pods("node-3"), "its processes are known")
        cluster.lose_node("node-3")
        cluster.until(lambda: not cluster.processes_of_pods("node-3"), "its processes have ended", 5)

        def given_up() -> bool:
            return "deletionTimestamp" in cluster.pods(namespace)[0]["metadata"]

        cluster.until(given_up, "the control plane has given the pod up")
        assert cluster.pods(namespace)[0]["status"]["phase"] == "Running"  # Nobody tells how it is.
    finally:
        cluster.start_node("node-3")
    cluster.until(lambda: not cluster.pods(namespace), "the node that is back lets the pod go")


def test_node_that_returns_restarts_pods_by_policy_and_reports_others(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        pod("once", "sleep 1000", nodeName="node-3"),
        pod("again", "sleep 1000", nodeName="node-3", restartPolicy="OnFailure"),
        namespace=namespace,
    )
    for name in ("once", "again"):
        await_phase(cluster, namespace, name, "Running")
    cluster.lose_node("node-3")
    cluster.start_node("node-3")

    ended = await_phase(cluster, namespace, "once", "Failed")["status"]["containerStatuses"][0]["state"]
    assert ended["terminated"]["exitCode"] == 137

    def started_again() -> bool:
        found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/again")["status"]["containerStatuses"][0]
        return found["restartCount"] == 1 and "running" in found["state"]

    cluster.until(started_again, "the other one is started again")
    cluster.kubectl("delete", "pod", "-n", namespace, "once", "--timeout=20s")


def test_pods_deleted_during_start_leave_nothing(cluster: Cluster, namespace: str) -> None:
    def nothing_left() -> bool:
        return not cluster.left_of_pods()

    cluster.until(nothing_left, "pods of other tests are gone", instead=lambda: str(cluster.left_of_pods()))
    for round_of in range(3):
        names = [f"brief-{round_of}-{number}" for number in range(4)]
        pods = [pod(name, "trap '' TERM; sleep 1000", terminationGracePeriodSeconds=1) for name in names]
        cluster.apply(*pods, namespace=namespace)
        cluster.kubectl("delete", "pods", "-n", namespace, "--all", "--timeout=30s")
    cluster.until(nothing_left, "nothing is left", instead=lambda: str(cluster.left_of_pods()))


def test_extended_resources_are_counted(cluster: Cluster, namespace: str) -> None:
    wanted = {"resources": {"limits": {"farandole.dev/slots": "5"}}}
    pods = [pod(f"p{number}", "sleep 1000", container=wanted, terminationGracePeriodSeconds=0) for number in range(4)]
    cluster.apply(*pods, namespace=namespace)

    def states() -> list[str]:
        return sorted(each["status"]["phase"] for each in cluster.pods(namespace))

    cluster.until(lambda: states() == ["Pending", "Running", "Running", "Running"], "three of four pods run")


def test_restarted_api_server_keeps_all_objects(cluster: Cluster, namespace: str) -> None:
    cluster.apply(pod("before", "sleep 1000", terminationGracePeriodSeconds=0), namespace=namespace)
    await_phase(cluster, namespace, "before", "Running")

    cluster.control.kill_api_server()
    cluster.control.start_api_server()

    assert await_phase(cluster, namespace, "before", "Running")
    cluster.apply(pod("after", "true"), namespace=namespace)
    await_phase(cluster, namespace, "after", "Succeeded")
