"""The command lines of other launchers."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from farandole.base.wire.rendezvous import Failure
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.plan.model import Identity
from farandole.control.launcher.start.external import explain, first_to_blame, plan_external, render_external
from farandole.control.launcher.targets.external import check_library, command_line, environment_of, flavour_of
from farandole.control.launcher.targets.launch_order import Flavour, LaunchOrder, Starter
from farandole.errors import SpecError

HERE = LaunchOrder("mpirun", 4, (), ("FARANDOLE_JOB", "FARANDOLE_SECRET"), ("python", "train.py", "--name", "a b"))
EVEN = replace(HERE, hosts=(Host("h1", 2), Host("h2", 2)))
OWN = replace(HERE, arguments=("-v", "--mca", "btl", "tcp,self"), binding=("--bind-to", "core"))
UNEVEN = replace(HERE, hosts=(Host("h1", 3), Host("h2", 1)))


@pytest.mark.parametrize(
    ("version", "flavour"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", Flavour.OPEN_MPI_5),
        ("mpirun (Open MPI) 4.1.8", Flavour.OPEN_MPI_4),
        ("HYDRA build details:\n    Version:        5.0.2", Flavour.MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929", Flavour.INTEL_MPI),
        ("slurm 23.11.4\n", Flavour.SLURM),
        ("slurm-wlm 22.05.8\n", Flavour.SLURM),
    ],
)
def test_implementation_of_program_is_recognized(version: str, flavour: Flavour) -> None:
    assert flavour_of(version) is flavour


@pytest.mark.parametrize("version", ["", "Usage: poe", "mpirun: LAM/MPI 7"])
def test_unknown_program_is_refused(version: str) -> None:
    with pytest.raises(SpecError) as caught:
        flavour_of(version)
    assert (version or "nothing") in caught.value.message and "Open MPI" in caught.value.hint


@pytest.mark.parametrize(
    ("flavour", "order", "line"),
    [
        (
            Flavour.OPEN_MPI_5,
            HERE,
            "mpirun -np 4 --map-by slot:OVERSUBSCRIBE --bind-to none --output rank "
            "-x FARANDOLE_JOB -x FARANDOLE_SECRET python train.py --name 'a b'",
        ),
        (
            Flavour.OPEN_MPI_5,
            replace(UNEVEN, root=True),
            "mpirun -np 4 --host h1:3,h2:1 --map-by slot:OVERSUBSCRIBE --bind-to none --output rank "
            "--allow-run-as-root -x FARANDOLE_JOB -x FARANDOLE_SECRET python train.py --name 'a b'",
        ),
        (
            Flavour.OPEN_MPI_4,
            EVEN,
            "mpirun -np 4 --host h1:2,h2:2 --map-by slot:OVERSUBSCRIBE --bind-to none --tag-output "
            "-x FARANDOLE_JOB -x FARANDOLE_SECRET python train.py --name 'a b'",
        ),
        (Flavour.MPICH, HERE, "mpirun -n 4 -genvall -bind-to none -prepend-rank python train.py --name 'a b'"),
        (
            Flavour.MPICH,
            UNEVEN,
            "mpirun -n 4 -hosts h1:3,h2:1 -genvall -bind-to none -prepend-rank python train.py --name 'a b'",
        ),
        (Flavour.INTEL_MPI, HERE, "mpirun -genvall -prepend-rank -n 4 python train.py --name 'a b'"),
        (
            Flavour.INTEL_MPI,
            UNEVEN,
            "mpirun -genvall -prepend-rank -host h1 -n 3 python train.py --name 'a b' "
            ": -host h2 -n 1 python train.py --name 'a b'",
        ),
        (
            Flavour.SLURM,
            replace(HERE, program="srun"),
            "srun --ntasks=4 --export=ALL --mpi=none --cpu-bind=none --kill-on-bad-exit=1 --label "
            "python train.py --name 'a b'",
        ),
        (
            Flavour.SLURM,
            replace(HERE, program="srun", mpi=True),
            "srun --ntasks=4 --export=ALL --cpu-bind=none --kill-on-bad-exit=1 --label python train.py --name 'a b'",
        ),
        (
            Flavour.SLURM,
            replace(EVEN, program="srun"),
            "srun --ntasks=4 --nodes=2 --ntasks-per-node=2 --nodelist=h1,h2 --export=ALL --mpi=none --cpu-bind=none "
            "--kill-on-bad-exit=1 --label python train.py --name 'a b'",
        ),
        (
            Flavour.OPEN_MPI_5,
            OWN,
            "mpirun -np 4 --bind-to core --output rank -v --mca btl tcp,self "
            "-x FARANDOLE_JOB -x FARANDOLE_SECRET python train.py --name 'a b'",
        ),
        (
            Flavour.MPICH,
            OWN,
            "mpirun -n 4 -genvall --bind-to core -prepend-rank -v --mca btl tcp,self python train.py --name 'a b'",
        ),
        (
            Flavour.INTEL_MPI,
            OWN,
            "mpirun -genvall --bind-to core -prepend-rank -v --mca btl tcp,self -n 4 python train.py --name 'a b'",
        ),
        (
            Flavour.SLURM,
            replace(OWN, program="srun", mpi=True, binding=()),
            "srun --ntasks=4 --export=ALL --kill-on-bad-exit=1 --label -v --mca btl tcp,self "
            "python train.py --name 'a b'",
        ),
    ],
)
def test_command_lines(flavour: Flavour, order: LaunchOrder, line: str) -> None:
    assert shlex.join(command_line(flavour, order)) == line


@pytest.mark.parametrize(
    ("flavour", "library", "fits"),
    [
        (Flavour.MPICH, "", True),
        (Flavour.MPICH, "/opt/mpich/lib/libmpi_abi.so.1", True),
        (Flavour.MPICH, "/opt/mpich/lib/libmpi.so.12.5.2", True),
        (Flavour.INTEL_MPI, "/opt/intel/lib/libmpi.so.12", True),
        (Flavour.SLURM, "/opt/openmpi/lib/libmpi.so.40", True),
        (Flavour.OPEN_MPI_5, "/opt/openmpi/lib/libmpi.so.40", True),
        (Flavour.OPEN_MPI_5, "/opt/mpich/lib/libmpi.so.12", False),
        (Flavour.MPICH, "/opt/openmpi/lib/libmpi.so.40", False),
    ],
)
def test_a_library_of_another_abi_than_the_program_is_refused(flavour: Flavour, library: str, fits: bool) -> None:
    if fits:
        check_library(flavour, library)
        return
    with pytest.raises(SpecError, match=rf"{library}: .* the ABI of {flavour.value}"):
        check_library(flavour, library)


def test_no_binding_where_only_a_variable_says_so() -> None:
    assert environment_of(Flavour.INTEL_MPI) == {"I_MPI_PIN": "0"}
    assert environment_of(Flavour.OPEN_MPI_5) == {}


@pytest.mark.parametrize(
    ("flavour", "hosts", "told"),
    [
        (Flavour.SLURM, (Host("h1", 3), Host("h2", 1)), "same number of workers on each node"),
        (Flavour.MPICH, (Host("me@h1", 4),), "not me@h1"),
        (Flavour.OPEN_MPI_5, (Host("fd00::1", 4),), "not fd00::1"),
    ],
)
def test_unsupported_options_are_refused(flavour: Flavour, hosts: tuple[Host, ...], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        command_line(flavour, replace(HERE, hosts=hosts))


# --- the plan -----------------------------------------------------------------------------------------------------

MACHINE = Machine("earth", 8, 0, "/work", {"PATH": "/bin", "HOME": "/home/me"})
SPEC = LaunchSpec(command=("python", "train.py"), num_proc=2, exports=("RATE=0.1 to 0.2",))

PLAN = """\
2 workers, started by MPICH

command        mpirun -n 2 -genvall -bind-to none -prepend-rank python train.py
directory      /work
roster         here, on loopback

every worker gets the launcher's environment, and
  FARANDOLE_JOB=<chosen at start>
  FARANDOLE_SECRET=***
  FARANDOLE_START_TIMEOUT=30
  HOROVOD_CONTROLLER=gloo
  HOROVOD_CPU_OPERATIONS=gloo
  PYTHONUNBUFFERED=1
  RATE='0.1 to 0.2'
  FARANDOLE_ROSTER=<chosen at start>
"""


def test_dry_run_is_whole_plan() -> None:
    assert render_external(plan_external(Starter("mpirun"), Flavour.MPICH, SPEC, MACHINE, Identity())) == PLAN


def test_no_value_and_no_secret_is_on_the_command_line() -> None:
    identity = Identity("job-7", secret="5ec2e7")
    for flavour in Flavour:
        plan = plan_external(Starter("mpirun"), flavour, SPEC, MACHINE, identity, "10.0.0.1:4711")
        line = shlex.join(plan.command)
        assert not [value for value in ("5ec2e7", "job-7", "4711", "0.1") if value in line]
        assert plan.environment["FARANDOLE_SECRET"] == "5ec2e7"
        assert plan.environment["FARANDOLE_ROSTER"] == "10.0.0.1:4711"
        if flavour in (Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5):
            assert set(plan.environment) <= set(plan.command)
            assert "-x PATH" in line and "HOME" not in line


def test_network_and_master_are_passed_on() -> None:
    spec = replace(SPEC, network=("eth1", "10.0.0.0/8"), master="h1:29500")
    environment = plan_external(Starter("srun"), Flavour.SLURM, spec, MACHINE, Identity()).environment
    assert environment["FARANDOLE_NETWORK"] == "eth1,10.0.0.0/8"
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("h1", "29500")


@pytest.mark.parametrize(
    ("flavour", "environment", "local"),
    [
        (Flavour.MPICH, {}, True),
        (Flavour.MPICH, {"SLURM_JOB_ID": "7"}, False),
        (Flavour.OPEN_MPI_5, {"PBS_NODEFILE": "/x"}, False),
        (Flavour.SLURM, {}, False),
    ],
)
def test_local_jobs_are_recognized(flavour: Flavour, environment: dict[str, str], local: bool) -> None:
    machine = replace(MACHINE, environment=environment)
    assert plan_external(Starter("mpirun"), flavour, SPEC, machine, Identity()).local is local


@pytest.mark.parametrize("option", [{"output_dir": "logs"}, {"setup": "make"}])
def test_unsupported_jobs_are_refused(option: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="does not work through mpirun"):
        plan_external(Starter("mpirun"), Flavour.MPICH, replace(SPEC, **option), MACHINE, Identity())  # type: ignore[arg-type]


# --- what went wrong ------------------------------------------------------------------------------------------------

MPICH_PLAN = plan_external(Starter("mpirun"), Flavour.MPICH, SPEC, MACHINE, Identity())


def test_first_failure_is_not_a_consequence() -> None:
    failures = {0: Failure("", "WorkerLostError: rank 1", 1), 1: Failure("Trace\n  back\n", "ValueError: boom", None)}
    assert first_to_blame(failures) == 1
    assert explain(MPICH_PLAN, 3, failures) == (
        "error: rank 1 failed first: ValueError: boom\n\n    Trace\n      back\n\n"
        "hint: mpirun ended with code 3; its output above says how the processes ended"
    )
    failures = {1: Failure("", "farandole.errors.MismatchError: shapes", None)}
    assert "\nhint: the message says what each rank sent: " in explain(MPICH_PLAN, 1, failures)


def test_first_consequence_is_reported_if_nothing_else_is_known() -> None:
    assert first_to_blame({2: Failure("", "lost", 1), 0: Failure("", "lost", 1)}) == 2


def test_without_a_report_the_program_is_quoted() -> None:
    assert first_to_blame({}) is None
    assert explain(MPICH_PLAN, -15, {}).startswith(
        "error: mpirun was killed by SIGTERM; no worker has reported an exception\n"
    )
