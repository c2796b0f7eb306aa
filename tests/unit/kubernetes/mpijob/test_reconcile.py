"""The pods and the status of an MPIJob, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from mpi_jobs import v1alpha2, v2beta1
from played_cluster import PlayedCluster

from farandole.control.kubernetes import names
from farandole.control.kubernetes.model import Options, Problem, Ref
from farandole.control.kubernetes.mpijob.reconcile import reconcile

OPTIONS = Options(image="operator:1")


def cluster(job: dict[str, Any] | None = None, options: Options = OPTIONS) -> PlayedCluster:
    return PlayedCluster(job or v2beta1(), reconcile, options)


def running(job: dict[str, Any] | None = None, options: Options = OPTIONS) -> PlayedCluster:
    played = cluster(job, options)
    played.start()
    assert played.condition("Running") == ("True", "MPIJobRunning")
    return played


def ended_pods(played: PlayedCluster) -> list[str]:
    played.settle()
    played.vanish_terminating()
    return sorted(played.pods())


# --- starting --------------------------------------------------------------------------------------------------------


def test_launcher_starts_when_all_workers_are_ready() -> None:
    played = cluster()
    played.settle()
    assert sorted(played.pods()) == ["pi-worker-0", "pi-worker-1"]
    assert played.condition("Created") == ("True", "MPIJobCreated")
    played.run("pi-worker-0")
    played.run("pi-worker-1", ready=False)
    played.settle()
    assert played.pods(names.LAUNCHER) == {}
    played.run("pi-worker-1")
    played.settle()
    assert sorted(played.pods(names.LAUNCHER)) == ["pi-launcher"]
    played.run_all()
    played.settle()
    assert played.condition("Running") == ("True", "MPIJobRunning")
    assert played.condition("Restarting") is None
    assert played.events == ["MPIJobCreated", "MPIJobRunning"]


@pytest.mark.parametrize("how", ["AtStartup", "gang"])
def test_launcher_starts_with_workers_if_requested(how: str) -> None:
    job = v2beta1()
    if how == "AtStartup":
        job["spec"]["launcherCreationPolicy"] = how
    played = cluster(job, Options(gang_scheduler="volcano" if how == "gang" else ""))
    played.settle()
    assert sorted(played.pods()) == ["pi-launcher", "pi-worker-0", "pi-worker-1"]


def test_host_list_names_all_hosts_and_discovery_only_ready_ones() -> None:
    played = cluster()
    played.settle()
    played.run("pi-worker-1")
    played.settle()
    files = played.config()
    assert files["hostfile"] == "pi-worker-0.pi.default.svc slots=2\npi-worker-1.pi.default.svc slots=2\n"
    assert files["discover_hosts.sh"] == "#!/bin/sh\necho pi-worker-1.pi.default.svc:2\n"


def test_intel_and_mpich_get_their_form_of_host_list() -> None:
    for implementation, variable in (("Intel", "I_MPI_HYDRA_HOST_FILE"), ("MPICH", "HYDRA_HOST_FILE")):
        job = v2beta1()
        job["spec"]["mpiImplementation"] = implementation
        played = running(job)
        assert played.config()["hostfile"].splitlines()[0] == "pi-worker-0.pi.default.svc:2"
        environment = {item["name"]: item["value"] for item in main(played.launcher())["env"]}
        assert environment[variable] == "/etc/mpi/hostfile"


def main(pod: Any) -> Any:
    return pod["spec"]["containers"][0]


def test_old_version_reaches_workers_by_kubectl_exec() -> None:
    played = running(v1alpha2())
    launcher, worker = played.launcher(), played.pod("mnist-worker-0")
    environment = {item["name"]: item["value"] for item in main(launcher)["env"]}
    assert environment["OMPI_MCA_plm_rsh_agent"] == "/etc/mpi/kubexec.sh"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == ""
    assert launcher["spec"]["serviceAccountName"] == "mnist-launcher"
    assert [item["image"] for item in launcher["spec"]["initContainers"]] == ["operator:1"]
    # As published: its command is one empty word.
    assert "sleep 365d" in main(worker)["command"][-1]
    assert {mount["mountPath"] for mount in main(worker)["volumeMounts"]} == {"/etc/mpi"}
    role = next(obj for ref, obj in played.objects.items() if ref.kind == "Role")
    assert {name for rule in role["rules"] for name in rule["resourceNames"]} == {"mnist-worker-0", "mnist-worker-1"}
    assert played.config()["hostfile"] == "mnist-worker-0 slots=1\nmnist-worker-1 slots=1\n"
    assert 'exec "$kubectl" exec -i "$pod" -- /bin/sh -c "$*"' in played.config()["kubexec.sh"]
    assert not any(ref.kind == "Secret" for ref in played.objects)


def test_pods_have_labels_of_all_versions_and_of_template() -> None:
    labels = running().pod("pi-worker-1")["metadata"]["labels"]
    assert labels["training.kubeflow.org/job-name"] == labels["mpi-job-name"] == labels["mpi_job_name"] == "pi"
    assert labels["training.kubeflow.org/job-role"] == labels["mpi-job-role"] == labels["mpi_role_type"] == "worker"
    assert labels["training.kubeflow.org/replica-index"] == "1"
    assert labels["training.kubeflow.org/operator-name"] == "mpi-operator"
    assert labels["team"] == "a"
    assert running().pod("pi-worker-1")["metadata"]["annotations"]["note"] == "b"


def test_keys_are_private_for_root_and_readable_for_other_users() -> None:
    def mode(job: dict[str, Any]) -> Any:
        volumes = running(job).pod("pi-worker-0")["spec"]["volumes"]
        return next(item["secret"].get("defaultMode") for item in volumes if item["name"] == "ssh-auth")

    root = v2beta1()
    del root["spec"]["sshAuthMountPath"]
    assert mode(v2beta1()) is None
    del root["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["securityContext"]
    assert mode(root) == 0o600


def test_launcher_with_slots_needs_no_workers() -> None:
    job = v2beta1()
    job["spec"]["runLauncherAsWorker"] = True
    del job["spec"]["mpiReplicaSpecs"]["Worker"]
    played = running(job)
    assert sorted(played.pods()) == ["pi-launcher"]
    assert played.config()["hostfile"] == "pi-launcher.pi.default.svc slots=2\n"


def test_job_name_that_is_not_a_service_name_gets_another_service_name() -> None:
    job = v2beta1()
    job["metadata"]["name"] = "1pi"
    played = running(job)
    (service,) = [ref.name for ref in played.objects if ref.kind == "Service"]
    assert service == "job-1pi"
    assert {pod["spec"]["subdomain"] for pod in played.pods().values()} == {service}
    assert "1pi-worker-0.job-1pi.default.svc slots=2\n" in played.config()["hostfile"]


def test_replica_indices_begin_with_launcher_that_has_slots() -> None:
    def indices(job: dict[str, Any]) -> dict[str, str | None]:
        labels = {name: pod["metadata"]["labels"] for name, pod in running(job).pods().items()}
        return {name: each.get("training.kubeflow.org/replica-index") for name, each in labels.items()}

    job = v2beta1()
    assert indices(job) == {"pi-launcher": None, "pi-worker-0": "0", "pi-worker-1": "1"}
    job["spec"]["runLauncherAsWorker"] = True
    assert indices(job) == {"pi-launcher": "0", "pi-worker-0": "1", "pi-worker-1": "2"}


def test_main_container_gets_environment_and_commands() -> None:
    job = v1alpha2()
    job["spec"]["mainContainer"] = "trainer"
    job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"].append({"name": "trainer", "image": "x"})
    played = running(job)
    assert '"$pod" --container=trainer --' in played.config()["kubexec.sh"]
    sidecar, trainer = played.pod("mnist-worker-0")["spec"]["containers"]
    assert "volumeMounts" not in sidecar
    assert "sleep 365d" in trainer["command"][-1]


def test_pod_group_contains_launcher_and_workers() -> None:
    policy = {"minAvailable": 2, "queue": "q", "priorityClass": "high", "minResources": {"cpu": "3"}}
    job = v2beta1(schedulingPolicy={**policy, "scheduleTimeoutSeconds": 9})
    played = running(job, Options(gang_scheduler="volcano"))
    group = next(obj for ref, obj in played.objects.items() if ref.kind == "PodGroup")
    assert group["spec"] == {
        "minMember": 2,
        "minResources": {"cpu": "3"},
        "queue": "q",
        "priorityClassName": "high",
    }
    assert played.launcher()["spec"]["schedulerName"] == "volcano"
    assert played.launcher()["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "pi"
    played = running(job, Options(gang_scheduler="plugins"))
    group = next(obj for ref, obj in played.objects.items() if ref.kind == "PodGroup")
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group["spec"] == {"minMember": 2, "minResources": {"cpu": "3"}, "scheduleTimeoutSeconds": 9}
    assert played.launcher()["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "pi"


def test_pod_group_without_workers_requests_resources_of_launcher() -> None:
    job = v2beta1(schedulingPolicy={"minAvailable": 0})
    for role, cpu in (("Launcher", "1"), ("Worker", "4")):
        container = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"][0]
        container["resources"] = {"requests": {"cpu": cpu}}
    played = running(job, Options(gang_scheduler="volcano"))
    group = next(obj for ref, obj in played.objects.items() if ref.kind == "PodGroup")
    assert group["spec"] == {"minMember": 0, "minResources": {"cpu": "1"}}


def test_job_managed_by_another_operator_is_ignored() -> None:
    played = cluster(v2beta1(managedBy="kueue.x-k8s.io/multikueue"))
    assert played.actions(played.decide()) == []
    assert cluster(v2beta1(managedBy="kubeflow.org/mpi-operator")).decide().status is not None


# --- losses ----------------------------------------------------------------------------------------------------------


def test_evicted_worker_is_replaced_and_status_shows_it() -> None:
    played = running()
    played.end("pi-worker-1", code=137, reason="Evicted")
    played.settle()
    assert played.condition("Running") == ("False", "WorkerLost")
    assert played.condition("Restarting") == ("True", "WorkerLost")
    assert "echo pi-worker-1" not in played.config()["discover_hosts.sh"]
    played.vanish_terminating()
    played.now += 10
    played.settle()
    played.run_all()
    played.settle()
    assert played.created.count("pi-worker-1") == 2
    assert played.condition("Running") == ("True", "MPIJobRunning")
    assert played.condition("Restarting") == ("False", "MPIJobRunning")
    assert played.created.count("pi-launcher") == 1
    assert played.job is not None
    assert played.job["status"]["history"]["disruptions"] == 1
    assert "failures" not in played.job["status"]["history"]


def test_launcher_failure_after_lost_worker_does_not_count() -> None:
    played = running(v2beta1(backoffLimit=0))
    played.end("pi-worker-0", reason="Evicted")
    played.settle()
    played.end("pi-launcher", code=1)
    played.settle()
    assert played.condition("Failed") is None
    played.vanish_terminating()
    played.now += 60
    played.start()
    assert sorted(played.pods(names.LAUNCHER)) == ["pi-launcher", "pi-launcher-1"]
    assert played.condition("Running") == ("True", "MPIJobRunning")
    assert played.condition("Restarting") == ("False", "MPIJobRunning")
    assert played.launcher()["spec"]["hostname"] == "pi-launcher"


def test_launcher_is_restarted_up_to_backoff_limit() -> None:
    played = running(v2beta1(backoffLimit=2))
    for attempt in range(3):
        assert played.condition("Failed") is None
        played.end(str(played.launcher()["metadata"]["name"]), code=3)
        played.settle()
        if attempt < 2:
            assert played.condition("Restarting") == ("True", "LauncherLost")
            played.now += 3
            played.settle()
            assert len(played.pods(names.LAUNCHER)) == attempt + 1, "too early"
        played.now += 1000
        played.start()
    assert played.condition("Failed") == ("True", "BackoffLimitExceeded")
    assert played.condition("Running") == ("False", "BackoffLimitExceeded")
    assert "exit code 3" in played.job["status"]["conditions"][-1]["message"]  # type: ignore[index]
    assert ended_pods(played) == ["pi-launcher", "pi-launcher-1", "pi-launcher-2"]


def test_failed_workers_count_against_backoff_limit() -> None:
    played = running(v2beta1(backoffLimit=1))
    for _ in range(2):
        played.end("pi-worker-0", code=1)
        played.settle()
        played.vanish_terminating()
        played.now += 1000
        played.start()
    assert played.condition("Failed") == ("True", "BackoffLimitExceeded")


def test_exit_code_policy_fails_job_on_permanent_error() -> None:
    for code, failed in ((1, ("True", "MPIJobFailed")), (143, None)):
        job = v2beta1()
        job["spec"]["mpiReplicaSpecs"]["Launcher"]["restartPolicy"] = "ExitCode"
        played = running(job)
        played.end("pi-launcher", code=code)
        played.settle()
        assert played.condition("Failed") == failed


def test_deleted_launcher_is_restarted_and_its_exit_code_is_ignored() -> None:
    played = running(v2beta1(backoffLimit=0))
    played.delete(Ref("v1", "Pod", "default", "pi-launcher"))
    played.end("pi-launcher", code=0)
    played.settle()
    assert played.condition("Succeeded") is None
    assert played.condition("Restarting") == ("True", "LauncherLost")
    played.vanish_terminating()
    played.start()
    assert played.created.count("pi-launcher") == 2
    assert played.condition("Running") == ("True", "MPIJobRunning")


def test_failure_is_counted_once_wherever_operator_is_killed() -> None:
    for killed_after in range(6):
        played = running(v2beta1(backoffLimit=5))
        played.end("pi-worker-0", code=1)
        played.end("pi-launcher", code=1)
        played.step(until=killed_after)
        played.settle()
        assert played.job is not None
        assert played.job["status"]["history"]["failures"] == 1, "the launcher failed after its worker"


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("None", ["pi-launcher", "pi-worker-0", "pi-worker-1"]),
        ("Running", ["pi-launcher", "pi-worker-1"]),
        ("All", ["pi-launcher"]),
    ],
)
def test_clean_pod_policy_decides_which_pods_remain(policy: str, left: list[str]) -> None:
    played = running(v2beta1(cleanPodPolicy=policy))
    played.end("pi-worker-1")
    played.end("pi-launcher")
    assert ended_pods(played) == left
    assert played.condition("Succeeded") == ("True", "MPIJobSucceeded")
    assert played.condition("Running") == ("False", "MPIJobSucceeded")
    assert played.job is not None
    assert "completionTime" in played.job["status"]


def test_run_policy_overrides_policies_at_the_top() -> None:
    old = v1alpha2()
    played = running(old)
    played.end("mnist-launcher")
    assert ended_pods(played) == ["mnist-launcher"]
    old["spec"]["runPolicy"] = {"cleanPodPolicy": "None"}
    played = running(old)
    played.end("mnist-launcher")
    assert len(ended_pods(played)) == 3


def test_deadline_ends_job() -> None:
    played = running(v2beta1(activeDeadlineSeconds=100, cleanPodPolicy="Running"))
    assert played.decide().again_at == pytest.approx(played.now + 100, abs=1)
    played.now += 101
    assert ended_pods(played) == []
    assert played.condition("Failed") == ("True", "DeadlineExceeded")


def test_job_is_deleted_after_ttl() -> None:
    played = running(v2beta1(ttlSecondsAfterFinished=50))
    played.end("pi-launcher")
    played.settle()
    assert played.decide().again_at == pytest.approx(played.now + 50, abs=1)
    played.now += 51
    played.step()
    assert played.job is None


# --- changes ---------------------------------------------------------------------------------------------------------


def test_workers_can_be_added_while_job_runs() -> None:
    played = running()
    assert played.job is not None
    played.job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = 3
    played.settle()
    assert played.condition("Running") == ("True", "MPIJobRunning")
    played.run_all()
    played.settle()
    assert "echo pi-worker-2.pi.default.svc:2" in played.config()["discover_hosts.sh"]
    played.vanish("pi-worker-2")
    played.settle()
    assert played.condition("Running") == ("False", "WorkerLost")


def test_surplus_workers_leave_host_list_before_they_are_deleted() -> None:
    played = running()
    mark = played.launcher()["metadata"]["annotations"][names.HOSTS_ANNOTATION]
    assert played.job is not None
    played.job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = 1
    played.settle()
    assert "worker-1" not in played.config()["discover_hosts.sh"] + played.config()["hostfile"]
    assert played.launcher()["metadata"]["annotations"][names.HOSTS_ANNOTATION] != mark
    assert "deletionTimestamp" not in played.pod("pi-worker-1")["metadata"]
    again = played.decide().again_at
    assert again is not None
    played.now = again
    played.settle()
    assert "deletionTimestamp" in played.pod("pi-worker-1")["metadata"]
    assert played.condition("Running") == ("True", "MPIJobRunning")


def test_suspended_job_has_no_pods_and_is_restarted() -> None:
    played = running()
    assert played.job is not None
    played.job["spec"]["runPolicy"]["suspend"] = True
    played.settle()
    assert played.condition("Suspended") == ("True", "MPIJobSuspended")
    assert played.condition("Running") == ("False", "MPIJobSuspended")
    assert "startTime" not in played.job["status"]
    played.end("pi-launcher", code=143)
    played.settle()
    played.vanish_terminating()
    assert played.pods() == {}
    played.job["spec"]["runPolicy"]["suspend"] = False
    played.start()
    assert played.condition("Suspended") == ("False", "MPIJobResumed")
    assert played.condition("Running") == ("True", "MPIJobRunning")
    assert "startTime" in played.job["status"]


# --- what is in its way ----------------------------------------------------------------------------------------------


def test_refused_object_is_a_condition_and_is_retried_later() -> None:
    played = cluster()
    ref = Ref("v1", "Pod", "default", "pi-worker-0")
    played.problems[ref] = Problem(ref, "QuotaExceeded", "exceeded quota: small", 1, played.now + 5)
    outcome = played.settle()
    assert played.condition("Blocked") == ("True", "QuotaExceeded")
    assert sorted(played.pods()) == ["pi-worker-1"]
    assert outcome.again_at == played.now + 5
    played.now += 6
    assert ref in {item.ref for item in played.decide().wanted}
    played.problems.clear()
    played.start()
    assert played.condition("Blocked") == ("False", "Unblocked")


def test_image_that_cannot_be_pulled_is_a_condition() -> None:
    played = cluster()
    played.settle()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image, tried 3 times"}}
    played.pod("pi-worker-0")["status"]["containerStatuses"] = [{"name": "m", "image": "pi", "state": waiting}]
    again = played.settle().again_at
    assert played.condition("Blocked") is None
    assert again is not None
    played.now = again
    played.settle()
    assert played.condition("Blocked") == ("True", "ImageUnavailable")
    assert played.job is not None
    (blocked,) = [each for each in played.job["status"]["conditions"] if each["type"] == "Blocked"]
    assert blocked["message"].endswith("ImagePullBackOff: no such image, tried 3 times")


def test_early_worker_failure_is_reported_with_exit_code_and_next_attempt() -> None:
    played = cluster()
    played.settle()
    ended = {"terminated": {"exitCode": 127, "reason": "Error", "message": "sshd: no such file\n"}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "m", "state": ended}]}
    played.pod("pi-worker-0")["status"] = status
    played.settle()
    assert played.job is not None
    assert played.job["status"]["state"] == "Restarting"
    (told,) = [each["message"] for each in played.job["status"]["conditions"] if each["type"] == "Restarting"]
    assert "pi-worker-0 failed (Error, exit code 127, sshd: no such file); it is started again at " in told
    played.vanish_terminating()
    played.now += 6
    played.start()
    assert played.job["status"]["state"] == "Running"


def test_repeatedly_evicted_workers_are_replaced_at_once() -> None:
    played = running()
    for _ in range(5):
        played.end("pi-worker-0", 1, reason="Evicted")
        played.settle()
        played.vanish_terminating()
        played.settle()
        assert "pi-worker-0" in played.pods()
        played.run_all()
        played.settle()


def test_invalid_spec_is_a_condition_with_all_faults() -> None:
    job = v2beta1(cleanPodPolicy="Sometimes")
    del job["spec"]["mpiReplicaSpecs"]["Launcher"]
    played = cluster(job)
    played.settle()
    assert played.condition("Blocked") == ("True", "InvalidSpec")
    assert played.job is not None
    message = played.job["status"]["conditions"][0]["message"]
    assert "mpiReplicaSpecs has no Launcher" in message
    assert played.job["status"]["state"] == "Blocked"
    assert played.events == ["InvalidSpec"]
    played.job["spec"] = v2beta1()["spec"]
    played.start()
    assert played.condition("Blocked") == ("False", "Unblocked")
