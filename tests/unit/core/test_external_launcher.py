"""Every launcher by the variables that it sets, as they were seen, or are documented; and one inside the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from farandole.base.external_launcher import ExternalPlacement, find
from farandole.errors import SettingError

OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node1-27501@1",
    "PMIX_RANK": "1",
}
OPEN_MPI_4 = OPEN_MPI_5 | {
    "PMIX_NAMESPACE": "1454964737",
    "OMPI_MCA_orte_precondition_transports": "8c2e46ad9e7e40e6-0faabf5e4675b9b1",
}
MPICH = {
    "PMI_RANK": "0",
    "PMI_SIZE": "2",
    "PMI_FD": "9",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
}
INTEL_MPI = MPICH | {"I_MPI_HYDRA_UUID": "9c3a0000-0a40-e220-cd60-0600ba52ee7e"}
BATCH_SHELL = {
    "SLURM_JOB_ID": "17",
    "SLURM_CLUSTER_NAME": "big",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
}
SRUN = BATCH_SHELL | {
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
}
TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
}
JSRUN = OPEN_MPI_5 | {
    "PMIX_NAMESPACE": "1",
    "JSM_NAMESPACE_ID": "1",
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "4",
    "LSB_JOBID": "4711",
}

HELPER = "/opt/mpich/bin/hydra_pmi_proxy --control-port node1:44557 --rmk user --launcher ssh --pgid 0 --proxy-id 1"
ABOVE_MPICH = ["/bin/sh job.sh", HELPER, "mpirun -n 2 job.sh"]


def look(environment: Mapping[str, str], above: Sequence[str] = ()) -> ExternalPlacement | None:
    def ancestors() -> Iterator[Sequence[str]]:
        return (command.split() for command in above)

    return find(environment, ancestors)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (OPEN_MPI_5, ExternalPlacement("mpirun (Open MPI)", 1, 4, False, "mpirun (Open MPI) prterun-node1-27501@1")),
        (
            OPEN_MPI_4,
            ExternalPlacement(
                "mpirun (Open MPI)",
                1,
                4,
                False,
                "mpirun (Open MPI) 1454964737 8c2e46ad9e7e40e6-0faabf5e4675b9b1",
            ),
        ),
        (MPICH, ExternalPlacement("mpirun (MPICH)", 0, 2, True, "mpirun (MPICH) node1:44557")),
        (
            INTEL_MPI,
            ExternalPlacement(
                "mpirun (Intel MPI)", 0, 2, True, "mpirun (Intel MPI) 9c3a0000-0a40-e220-cd60-0600ba52ee7e"
            ),
        ),
        (SRUN, ExternalPlacement("srun", 3, 4, False, "srun 17 0 big")),
        (SRUN | {"SLURM_STEP_NUM_NODES": "1"}, ExternalPlacement("srun", 3, 4, True, "srun 17 0 big")),
        (TORCHRUN, ExternalPlacement("torchrun", 2, 4, False, "torchrun none node1 29500 1")),
        (JSRUN, ExternalPlacement("jsrun", 1, 4, True, "jsrun 4711 1")),
        ({"FARANDOLE_RANK": "0", "FARANDOLE_SIZE": "2"}, ExternalPlacement("hand", 0, 2, False, "")),
    ],
)
def test_each_launcher_is_recognized(environment: Mapping[str, str], expected: ExternalPlacement) -> None:
    assert look(environment, ABOVE_MPICH) == expected


@pytest.mark.parametrize(
    ("environment", "starter"),
    [
        (OPEN_MPI_5 | SRUN, "mpirun (Open MPI)"),
        (MPICH | SRUN, "mpirun (MPICH)"),
        (INTEL_MPI | SRUN, "mpirun (Intel MPI)"),
        (SRUN | {"PMI_RANK": "3", "PMI_SIZE": "4"}, "srun"),
        (TORCHRUN | SRUN, "torchrun"),
        (TORCHRUN | BATCH_SHELL, "torchrun"),
        (TORCHRUN | OPEN_MPI_5, "torchrun"),
        (SRUN | {"FARANDOLE_RANK": "0", "FARANDOLE_SIZE": "2"}, "hand"),
    ],
)
def test_innermost_launcher_takes_precedence(environment: Mapping[str, str], starter: str) -> None:
    found = look(environment, ABOVE_MPICH)
    assert found is not None
    assert found.starter == starter


@pytest.mark.parametrize(
    "environment",
    [
        {},
        BATCH_SHELL,
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "", "OMPI_COMM_WORLD_SIZE": ""},
    ],
)
def test_process_without_launcher_is_not_a_worker(environment: Mapping[str, str]) -> None:
    assert look(environment) is None


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"FARANDOLE_RANK": "1"}, ["FARANDOLE_SIZE is not set", "FARANDOLE_RANK is '1'"]),
        ({"FARANDOLE_SIZE": "2"}, ["FARANDOLE_RANK is not set", "FARANDOLE_SIZE is '2'"]),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ["OMPI_COMM_WORLD_SIZE is not set", "Open MPI"]),
        (SRUN | {"SLURM_PROCID": "first"}, ["SLURM_PROCID is 'first', which is not a number", "srun"]),
        (OPEN_MPI_5 | {"OMPI_COMM_WORLD_RANK": "-1"}, ["OMPI_COMM_WORLD_RANK is '-1'"]),
        (OPEN_MPI_5 | {"OMPI_COMM_WORLD_RANK": "4"}, ["OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=4"]),
        (TORCHRUN | {"WORLD_SIZE": "0"}, ["RANK=2", "WORLD_SIZE=0"]),
    ],
)
def test_invalid_variables_are_named_in_the_error(environment: Mapping[str, str], told: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        look(environment)
    assert [part for part in told if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("environment", "above"),
    [
        (MPICH, ()),
        (MPICH, ["hydra_pmi_proxy --control-port", "mpirun -n 2 job.sh"]),
        ({name: value for name, value in OPEN_MPI_5.items() if name != "PMIX_NAMESPACE"}, ABOVE_MPICH),
        ({name: value for name, value in JSRUN.items() if name != "LSB_JOBID"}, ABOVE_MPICH),
    ],
)
def test_job_without_distinguishing_variables_has_no_key(environment: Mapping[str, str], above: Sequence[str]) -> None:
    found = look(environment, above)
    assert found is not None
    assert found.job_key == ""


def test_command_lines_of_ancestors_are_read() -> None:
    found = find(MPICH)  # Whatever started this test was not MPICH.
    assert found is not None
    assert found.job_key == ""
