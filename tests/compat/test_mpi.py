"""horovodrun --mpi and HOROVOD_CPU_OPERATIONS=MPI: who starts the workers, what carries their data, what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import drop_in
import pytest
from mpi_seats import PEERS

from farandole.compat.runner import launch
from farandole.control.launcher.targets.launch_order import Starter
from farandole.errors import SpecError

Run = Callable[..., drop_in.Ran]

TELL = """
    import os
    import numpy as np
    os.environ["FARANDOLE_HOST_KEY"] = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    import farandole.numpy as hvd

    hvd.init()
    total = hvd.allreduce(np.arange(3.0) + hvd.rank(), op=hvd.Sum)
    maps = open("/proc/self/maps").read()
    library = next((name for name in ("libmpi_abi.so.1", "libmpi.so.40") if name in maps), "no MPI")
    told = (hvd.rank(), hvd.size(), total.tolist(), hvd.mpi_enabled(), hvd.gloo_enabled(), hvd.mpi_threads_supported())
    variables = [os.environ.get(name) for name in ("HOROVOD_CPU_OPERATIONS", "MARK")]
    os.write(1, f"told {told} {library} {' '.join(map(str, variables))}\\n".encode())
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH with an mpirun that does nothing."""
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return f"{tmp_path}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("flags", "variables", "starter"),
    [
        ("", {}, None),
        ("--gloo", {"HOROVOD_CPU_OPERATIONS": "MPI"}, None),
        ("", {"HOROVOD_CPU_OPERATIONS": "gloo"}, None),
        ("--mpi", {}, Starter("mpirun")),
        ("", {"HOROVOD_CPU_OPERATIONS": "MPI"}, Starter("mpirun")),
        ("", {"FARANDOLE_BACKEND": "mpi"}, Starter("mpirun")),
        ("--mpi --mpi-args=-v", {}, Starter("mpirun", ("-v",))),
        ("--mpi --binding-args=--bind-to=core", {}, Starter("mpirun", (), ("--bind-to=core",))),
        ("--mpi --binding-args=", {}, Starter("mpirun", (), ())),
    ],
)
def test_the_program_that_starts_the_workers_is_chosen_by_flags(
    flags: str, variables: dict[str, str], starter: Starter | None, path: str
) -> None:
    args = launch.parse_args(["-np", "2", *flags.split(), "true"])
    job = launch.prepare(args, environment={"PATH": path, **variables})
    assert job.starter == starter
    assert (job.spec.settings.get("backend") == "mpi") == (starter is not None)


@pytest.mark.parametrize(
    ("flags", "told", "hint"),
    [
        ("--mpi --min-np 1", "--mpi and elastic training: an MPI world has a fixed set", "omit --mpi"),
        ("--mpi --host-discovery-script ./hosts", "workers cannot come and go", "--host-discovery-script"),
        ("--mpi --output-filename logs", "--output-filename does not work together with --mpi", "--mpi-args"),
        ("--mpi --mpi-args=a'b", '--mpi-args: "a\'b" cannot be split: No closing quotation', "quote it"),
    ],
)
def test_options_that_conflict_with_mpi_are_refused(flags: str, told: str, hint: str, path: str) -> None:
    args = launch.parse_args(["-np", "2", *flags.split(), "true"])
    with pytest.raises(SpecError) as caught:
        launch.prepare(args, environment={"PATH": path})
    assert told in caught.value.message and hint in caught.value.hint


def test_no_mpirun(tmp_path: Path) -> None:
    args = launch.parse_args(["-np", "2", "true"])
    with pytest.raises(SpecError) as caught:
        launch.prepare(args, environment={"PATH": str(tmp_path), "HOROVOD_CPU_OPERATIONS": "MPI"})
    assert caught.value.message == "HOROVOD_CPU_OPERATIONS=MPI: there is no program 'mpirun' on the PATH"
    assert "pip install mpich" in caught.value.hint


def test_flags_that_need_mpi_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    launch.prepare(launch.parse_args(["-np", "1", "--mpi-args=-v", "true"]))
    assert capsys.readouterr().err == "note: --mpi-args: no effect without --mpi\n"


@pytest.mark.parametrize(
    ("mpi", "flags", "variables", "library"),
    [
        ("mpich", ["--mpi", "--mpi-args=-genv MARK 1"], {}, "libmpi_abi.so.1"),
        ("openmpi", [], {"HOROVOD_CPU_OPERATIONS": "MPI", "MARK": "1"}, "libmpi.so.40"),
    ],
)
def test_mpirun_starts_them_and_mpi_carries_their_data(
    horovodrun: Run, mpi: str, flags: list[str], variables: dict[str, str], library: str
) -> None:
    programs = PEERS / mpi / "bin"
    if not (programs / "mpirun").exists():
        pytest.skip(f"no mpirun in {programs}: `make setup` installs it there")
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **variables}
    if mpi == "openmpi":
        environment |= {"OPAL_PREFIX": str(PEERS / mpi), "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    done = horovodrun("-np", "2", *flags, script=TELL, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    told = sorted(line.partition("told ")[2] for line in done.stdout.splitlines() if "told " in line)
    answers = "[1.0, 3.0, 5.0], True, False, True"
    assert told == [f"({rank}, 2, {answers}) {library} mpi 1" for rank in range(2)]


def test_a_function_through_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    import horovod

    programs = PEERS / "mpich" / "bin"
    if not (programs / "mpirun").exists():
        pytest.skip(f"no mpirun in {programs}: `make setup` installs it there")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def place(twice: int) -> tuple[int, int, bool, int]:
        import farandole.numpy as hvd

        hvd.init()
        return hvd.rank(), hvd.size(), hvd.mpi_enabled(), 2 * twice

    assert horovod.run(place, (21,), num_proc=2, use_mpi=True) == [(0, 2, True, 42), (1, 2, True, 42)]

    def fail() -> None:
        raise KeyError("no such thing")

    with pytest.raises(RuntimeError, match="no such thing") as caught:
        horovod.run(fail, num_proc=2, use_mpi=True)
    assert isinstance(caught.value.__cause__, KeyError)
    assert str(caught.value).startswith("mpirun failed with exit code 1\n")
    assert "Horovod detected" not in str(caught.value)


@pytest.fixture
def failing_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an mpirun on the PATH that calls itself MPICH and fails."""
    program = tmp_path / "bin" / "mpirun"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase "$*" in *version*) echo HYDRA build details: ;; *) exit 7 ;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("failing_mpirun")
def test_a_failure_of_mpirun_is_reported_as_by_horovod_with_its_exit_code(
    capfd: pytest.CaptureFixture[str],
) -> None:
    import horovod
    from farandole.compat.runner.mpi_run import mpi_run
    from farandole.compat.runner.settings import Settings

    with pytest.raises(RuntimeError, match=r"^mpirun failed with exit code 7\n"):
        horovod.run(print, num_proc=2, use_mpi=True)
    settings = Settings(verbose=0, num_proc=2, hosts="localhost:2", run_func_mode=True)
    with pytest.raises(RuntimeError, match=r"^mpirun failed with exit code 7\n"):
        mpi_run(settings, ["lo"], dict(os.environ), ["true"])
    capfd.readouterr()
    assert launch.run_commandline(["-np", "2", "--mpi", "true"]) == 7
    said = capfd.readouterr().err
    assert "RuntimeError" not in said and "mpirun" in said
