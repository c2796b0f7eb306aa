"""`horovod.run`: a function on several workers, and what Horovod's own tests call below it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

import horovod
from farandole.compat.runner import _HorovodArgs
from farandole.compat.runner.env import get_env_rank_and_size
from farandole.compat.runner.gloo_run import gloo_run
from farandole.compat.runner.launch import _run
from farandole.compat.runner.settings import Settings

FAILED = "Horovod detected that one or more processes exited with non-zero status"


def test_results_come_by_rank_and_none_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def function(a: int, b: int, c: int, d: int) -> Any:
        import os

        rank = int(os.environ["HOROVOD_RANK"])
        print(f"rank {rank}")
        return [rank, a + b + c + d] if rank == 0 else ("one" if rank == 1 else None)

    results = horovod.run(
        function,
        (1, 20),
        {"c": 300, "d": 4000},
        num_proc=3,
        hosts="localhost:2,127.0.0.1:2",
        use_gloo=True,
        start_timeout=60,
        disable_cache=True,
        output_filename=str(tmp_path),
        verbose=0,
    )
    assert results == [[0, 4321], "one", None]
    assert (tmp_path / "rank.1" / "stdout").read_text() == "[1]<stdout>:rank 1\n"
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[{rank}]<stdout>:rank {rank}" for rank in range(3)]


def test_collectives_in_a_function() -> None:
    def function() -> list[int]:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return hvd.allgather(torch.tensor([hvd.rank(), hvd.size()])).tolist()

    assert horovod.run(function, num_proc=2) == [[0, 2, 1, 2]] * 2


def test_an_elastic_job_returns_the_results_of_a_function_that_joins_no_world() -> None:
    def function() -> int:
        import os

        return 7 + int(os.environ["HOROVOD_RANK"])

    assert horovod.run(function, num_proc=2, min_num_proc=2) == [7, 8]


def test_an_exception_of_an_elastic_job_in_no_world() -> None:
    def function() -> None:
        raise KeyError("as expected")

    with pytest.raises(RuntimeError, match="all workers that were started first have failed") as caught:
        horovod.run(function, num_proc=2, min_num_proc=2)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_in_the_function() -> None:
    def function() -> None:
        import os

        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("as expected")

    with pytest.raises(RuntimeError, match=FAILED) as caught:
        horovod.run(function, num_proc=2)
    assert "Process name: 1\nExit code: 1\n" in str(caught.value)
    assert "KeyError: 'as expected'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": "localhost:1", "hostfile": "file"}, "hosts and hostfile"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi"),
        ({"hosts": "localhost"}, "Invalid host input"),
        ({"hosts": "x.invalid:1"}, "no host has this name"),
        ({"hosts": "localhost:1", "num_proc": 2}, "Requested more processes"),
        (
            {"min_num_proc": 2, "max_num_proc": 2, "slots": 1, "reset_limit": 2},
            "a start with 1 worker is outside the job's limits",
        ),
        ({"host_discovery_script": "find", "cooldown_range": [3, 2]}, "a cooldown of 3 to 2 s"),
        ({"host_discovery_script": "find", "cooldown_range": [1]}, "range of 1 numbers"),
        ({"host_discovery_script": "find", "hosts": "localhost:1"}, "a host discovery script are given"),
        ({"num_proc": 0}, "0 workers"),
    ],
)
def test_invalid_launches_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        horovod.run(print, **arguments)


def test_deprecated_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[_HorovodArgs] = []
    monkeypatch.setattr("farandole.compat.runner.launch._run", lambda job: jobs.append(job) or [])
    for old, value, attribute, new in [
        ("np", 3, "num_proc", 3),
        ("min_np", 1, "min_num_proc", 1),
        ("max_np", 4, "max_num_proc", 4),
        ("network_interface", "a,b", "nics", {"a", "b"}),
    ]:
        with pytest.warns(DeprecationWarning, match=f"{old}= is deprecated"):
            horovod.run(print, **{old: value})
        assert getattr(jobs[-1], attribute) == new
    horovod.run(
        print, network_interfaces="c,d", executable="python3", mpi_args="--x", ssh_port=1, ssh_identity_file="f"
    )
    last = jobs[-1]
    assert (last.nics, last.executable, last.ssh_port, last.num_proc) == ({"c", "d"}, "python3", 1, 1)


# --- what Horovod's tests drive directly ------------------------------------------------------------------------------


def arguments(**values: Any) -> _HorovodArgs:
    args = _HorovodArgs()
    args.np, args.hosts, args.use_gloo, args.nics = 4, "localhost:2,127.0.0.1:2", True, []
    args.verbose, args.disable_cache = 2, True
    for name, value in values.items():
        setattr(args, name, value)
    return args


def test_run_with_a_function_tells_where_it_runs() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert _run(arguments(run_func=get_env_rank_and_size)) == [(rank, 4) for rank in range(4)]
    told = out.getvalue().splitlines(keepends=True)
    assert "Remote host found: \n" in told
    assert "All hosts are local, finding the interfaces with address 127.0.0.1\n" in told
    assert sum(line.startswith("Local interface found ") for line in told) == 1


def test_run_with_a_command() -> None:
    assert _run(arguments(command=["true"])) is None
    with pytest.raises(RuntimeError, match=FAILED):
        _run(arguments(command=["false"]))


def test_gloo_run(capfd: pytest.CaptureFixture[str]) -> None:
    settings = Settings(verbose=0, num_proc=2, hosts="localhost:2", run_func_mode=True)
    gloo_run(settings, ["lo"], {"WORD": "hi"}, "127.0.0.1", ["sh", "-c", "echo $WORD"])
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:hi", "[1]<stdout>:hi"]
    with pytest.raises(RuntimeError, match=FAILED):
        gloo_run(settings, ["lo"], {}, "127.0.0.1", ["false"])
