"""Traces, profiles and the command line: what is read, and how mistakes are reported."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.control.cli.main import main
from farandole.control.scheduler.errors import SchedulerError, TraceError
from farandole.control.scheduler.rules import Queue, parse_queues
from farandole.control.simulator import swf, synthetic
from farandole.control.simulator.job_trace import read_workload, read_workloads
from farandole.control.simulator.profiles import applications_of

HEADER = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    head, *rows = synthetic.workload(jobs=5).splitlines(keepends=True)
    short = head + "".join(row for row in rows if row.startswith("digits"))
    for name, text in {**synthetic.profiles(), "workloads/w.csv": short}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_same_seed_makes_the_same_files() -> None:
    assert synthetic.profiles(3) == synthetic.profiles(3) != synthetic.profiles(4)
    assert synthetic.workload(3) == synthetic.workload(3) != synthetic.workload(4)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,1,nothing,1,128\n", "line 2: application 'nothing' has no profile"),
        ("a,1,digits,1,128\nb,soon,digits,1,128\n", "line 3: time is 'soon', which is not a number"),
        ("a,1,digits,0,128\n", "line 2: num_replicas is 0, and must be a number from 1 on"),
        ("a,1,digits,1.5,128\n", "line 2: num_replicas is 1.5, which is not a whole number"),
        ("a,1,digits,1\n", "line 2: 4 cells, and 5 columns"),
        ("a,1,digits,1,1\n", "line 2: batch size 1 was not measured"),
        ("a,1,digits,1,128\n\na,2,digits,1,128\n", "line 4: there is a job 'a' already, in line 2"),
        (" ,1,digits,1,128\n", "line 2: the job has no name"),
        ("a,1e18,digits,1,128\n", "line 2: time is 1e18, and must be a number from 0 to 1e\\+12"),
        ("", "there are no jobs"),
    ],
)
def test_mistakes_in_workloads_name_the_line(rows: str, message: str) -> None:
    applications = applications_of(synthetic.profiles())
    with pytest.raises(TraceError, match=message):
        read_workload("w.csv", HEADER + rows, applications)


def _turned(text: str) -> str:
    """Return a table with its columns in the opposite order, and one more."""
    return "".join(",".join([*reversed(line.split(",")), "note"]) + "\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("w.csv", lambda text: _turned(text).encode()),
        ("w.csv", lambda text: text.replace("\n", "\r\n").encode("utf-8-sig")),
        ("w.csv", lambda text: ("\n" + text.replace("\n", "\n \n,,,,\n")).encode()),
        ("w.csv", lambda text: text.replace(",", " , ").encode()),
        ("w.csv", lambda text: ("".join([*text.splitlines(True)[:1], *reversed(text.splitlines(True)[1:])])).encode()),
        ("w.csv.gz", lambda text: gzip.compress(text.encode())),
    ],
    ids=["other columns", "from Windows", "empty lines", "spaces", "another order", "packed"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_equivalent_workload_files_are_read_alike(
    name: str, content: Callable[[str], bytes], packed: bool, tmp_path: Path
) -> None:
    applications = applications_of(synthetic.profiles())
    text = synthetic.workload(jobs=9)
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / name).write_bytes(content(text))
    place = tmp_path / "trace"
    if packed:
        place = tmp_path / "trace.tar.xz"
        with tarfile.open(place, "w:xz") as archive:
            archive.add(tmp_path / "trace" / name, f"workloads/{name}")
    (found,) = read_workloads(place, applications)
    assert found.name == "w" and found.jobs == read_workload("w.csv", text, applications).jobs


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.csv", b"name,when,application,num_replicas,batch_size\n", "b.csv, line 1: there is no column time"),
        ("b.csv", HEADER.replace("time", "name,time").encode(), "b.csv, line 1: there are two columns name"),
        ("b.csv", b"\xff\xfe\x00", "cannot be read: 'utf-8' codec"),
        ("b.csv.gz", b"name,time", "cannot be read: Not a gzipped file"),
        ("b.csv.gz", gzip.compress(b"name,time" * 99, mtime=0)[:-20], "cannot be read: "),
    ],
)
def test_error_names_the_invalid_file(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(synthetic.workload(jobs=3))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=re.escape(message)):
        read_workloads(tmp_path, applications_of(synthetic.profiles()))


def test_mistakes_in_profiles_name_the_line() -> None:
    files = synthetic.profiles()
    name = "apps/digits/placements-fast.csv"
    with pytest.raises(TraceError, match=f"{name}, line 3: step_time is 'x'"):
        applications_of({**files, name: files[name].split("\n")[0] + "\n1,8,0.1,0.0\n1,16,x,0.0\n"})
    with pytest.raises(TraceError, match=f"{name}, line 1: there is no column sync_time"):
        applications_of({**files, name: "placement,local_bsz,step_time\n"})


STEP = "placement,local_bsz,step_time,sync_time\n"
LAYOUT = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
NOISE = "progress,grad_sqr,grad_var\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("placements-fast", STEP + "1,8,0,0\n", "line 2: sync_time is 0, and must be less than step_time, 0"),
        ("placements-fast", STEP + "1,8,0.1,0.2\n", "line 2: sync_time is 0.2, and must be less than step_time, 0.1"),
        ("placements-fast", STEP + "1,0,0.1,0\n", "line 2: local_bsz is 0, and must be a number from 1 on"),
        ("placements-fast", STEP + "10,8,0.1,0\n", "line 2: '10' is not a placement"),
        ("scalability-fast", LAYOUT + "2,2,8,0.1,0.1\n", "line 2: sync_time is 0.1, and must be less"),
        ("scalability-fast", LAYOUT + "4,2,8,0.2,0.1\n", "line 2: 2 replicas are not enough for 4 nodes"),
        ("validation-128", NOISE + "9,1,1\n8,1,1\n", "line 3: progress is 8, and must be a number from 9 on"),
        ("validation-128", NOISE + "9,0,0\n", "line 2: grad_sqr and grad_var are both 0"),
        ("validation-0", NOISE + "9,1,1\n", "validation-0.csv: '0' is not a batch size"),
    ],
)
def test_invalid_profiles_are_refused(name: str, content: str, message: str) -> None:
    with pytest.raises(TraceError, match=re.escape(message)):
        applications_of({**synthetic.profiles(), f"apps/digits/{name}.csv": content})


SWF = """\
; Version: 2.2
; MaxProcs: 8
1 0 10 100 4 -1 -1 4 200 -1 1 7 1 1 2 1 -1 -1
2 5 0 50 8 -1 -1 8 60 -1 1 8 1 1 2 1 -1 -1
3 6 0 -1 8 -1 -1 8 60 -1 0 8 1 1 2 1 -1 -1
4 7 0 20 -1 -1 -1 2 30 -1 1 8 1 1 3 1 -1 -1
"""


def test_swf(tmp_path: Path) -> None:
    trace = tmp_path / "log.swf"
    trace.write_text(SWF)
    workload = swf.read_swf(trace)
    assert [(job.submitted, job.slots, job.run_time, job.requested_time) for job in workload.jobs] == [
        (0.0, 4, 100.0, 200.0),
        (5.0, 8, 50.0, 60.0),
        (7.0, 2, 20.0, 30.0),
    ]
    assert workload.notes == ("log.swf: 1 jobs that never ran are left out",)
    assert swf.processors(trace) == 8
    for broken, message in (
        ("1 2 3\n", "line 7: 3 numbers, and a job has 18"),
        ("x " * 18 + "\n", "line 7: could not"),
        ("inf " * 18 + "\n", "line 7: inf is not a number"),
        ("1e15 " * 18 + "\n", "line 7: 1e.15 is too large"),
        ("5 9 0 10 1.5 -1 -1 1 60 -1 1 7 1 1 2 1 -1 -1\n", "line 7: 1.5 is not a whole number"),
        ("2 9 0 10 1 -1 -1 1 60 -1 1 7 1 1 2 1 -1 -1\n", "line 7: there is a job 2 already, in line 4"),
    ):
        trace.write_text(SWF + broken)
        with pytest.raises(TraceError, match=message):
            swf.read_swf(trace)


def test_a_directory_of_swf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.swf").write_bytes(SWF.replace("\n", "\r\n").encode())
    (tmp_path / "b.swf.gz").write_bytes(gzip.compress(SWF.replace("MaxProcs: 8", "MaxProcs: 16").encode()))
    assert main(["simulate", "--trace", str(tmp_path), "--policy", "fcfs", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["workloads"] == ["a", "b"] and len(document["cluster"]) == 16
    (fcfs,) = document["policies"]
    assert len(fcfs["results"]) == 6


def test_queues() -> None:
    queues = parse_queues(["lab:weight=3", "vision:parent=lab,quota=8,limit=16"])
    assert queues["vision"] == Queue("vision", "lab", 1.0, 8, 16)
    for text, message in (
        ("a:colour=red", "queue a: 'colour=red' is not a valid setting"),
        ("a:quota=many", "queue a: quota=many is not a whole number of at least 0"),
        ("a:quota=-1", "queue a: quota=-1 is not a whole number of at least 0"),
        ("a:limit=0", "queue a: limit=0 is not a whole number of at least 1"),
        ("a:limit=1.5", "queue a: limit=1.5 is not a whole number of at least 1"),
        ("a:weight=0", "queue a: weight=0 is not a number above 0"),
        ("a:weight=x", "queue a: weight=x is not a number above 0"),
        ("a:parent=b", "queue a: its parent b is not defined"),
        (":quota=1", "a queue has no name: ':quota=1'"),
    ):
        with pytest.raises(SchedulerError, match=re.escape(message)):
            parse_queues([text])


def test_simulate_swf_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "log.swf"
    trace.write_text(SWF)
    assert main(["simulate", "--trace", str(trace), "--policy", "fcfs,easy", "--predict", "given", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "1 jobs that never ran" in captured.err
    fcfs, easy = document["policies"]
    # 4 slots are free until 100. Job 2 wants 8 and waits; job 4 wants 2, and waits behind it or is done before.
    assert [job["completed"] for job in fcfs["results"]] == [100.0, 150.0, 170.0]
    assert [job["completed"] for job in easy["results"]] == [100.0, 150.0, 27.0]
    assert fcfs["makespan"] == 170.0 and fcfs["waiting"] == pytest.approx((0 + 95 + 143) / 3)


def test_simulate_a_directory_with_charts(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("page.html", "charts.svg"):
        arguments = ["--trace", str(demo), "--cluster", synthetic.CLUSTER, "--policy", "fcfs,adaptive"]
        assert main(["simulate", *arguments, "--plot", str(tmp_path / name)]) == 0
        assert "adaptive" in capsys.readouterr().out
        text = (tmp_path / name).read_text()
        assert text.count("<polyline") == 4 and "average completion time" in text


def test_figures_are_printed_when_charts_cannot_be_written(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "page.html"
    place.mkdir()
    assert main(["simulate", "--demo", "--jobs", "2", "--policy", "fcfs", "--plot", str(place)]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith("fcfs")
    assert f"error: {place} cannot be written: Is a directory" in captured.err


def test_the_list_of_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--policies"]) == 0
    assert "shortest remaining time first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to simulate"),
        (["--demo", "--policy", "fcsf"], "there is no policy fcsf"),
        (["--demo", "--cluster", "four"], "'four' is not a valid cluster"),
        (["--demo", "--plot", "charts.gif"], "charts are .html, .svg, .png"),
        (["--demo", "--restart", "-1"], "--restart -1 is not a number of seconds"),
        (["--demo", "--jobs", "0"], "--jobs 0"),
        (["--demo", "--cluster", "gpu:2x8"], "no application has a profile for nodes of type gpu"),
        (["--demo", "--queue", "default:quota=x"], "queue default: quota=x is not a whole number of at least 0"),
        (
            ["--demo", "--policy", "fair", "--queue", "default:quota=65"],
            "queue default: its quota of 65 exceeds the 64 slots of the cluster",
        ),
        (["--demo", "--quantum", "nan"], "--quantum and --ageing take seconds above 0"),
        (["--demo", "--ageing", "nan"], "--quantum and --ageing take seconds above 0"),
        (["--demo", "--plot", "/no/such/place/page.html"], "there is no directory /no/such/place"),
        (["--demo", "--save-demo", "/dev/null/x"], "/dev/null/x/apps/digits cannot be written: Not a directory"),
        (["--trace", "/no/such/place", "--cluster", "4x4"], "there is no such file or directory\nhint: check the path"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and message in captured.err


def test_missing_and_existing_files_are_reported(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([], "which cluster?"),
        (["--cluster", "slow:1x4"], "no application has a profile for nodes of type slow"),
        (["--cluster", "fast:1x8", "--only", "other"], "there is no workload other"),
        (["--cluster", "fast:1x8", "--queue", "defualt:weight=2"], "did you mean default? There are default"),
    ):
        assert main(["simulate", "--trace", str(demo), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["simulate", "--trace", str(demo / "workloads"), "--cluster", "fast:1x8"]) == 2
    assert "--profiles" in capsys.readouterr().err


UNMEASURED = "128 samples in a step of 16 workers: a local batch of 8 was not measured with (8, 8): 32 to 256 were"


@pytest.mark.parametrize("policy", ["fcfs", "equal", "adaptive", "oracle"])
@pytest.mark.parametrize(
    ("row", "more", "why"),
    [
        ("16,128,rigid", [], UNMEASURED),
        ("16,128,scale-gpus", ["--fixed-sizes"], UNMEASURED),
        ("24,2048,rigid", [], "it needs 24 slots of one type, and no type that it can use has more than 16"),
        ("8,2048,rigid", ["--queue", "default:limit=4"], "it needs 8 slots, and queue default may have 4 at once"),
    ],
)
def test_job_that_can_never_run_is_named_and_the_others_are_simulated(
    policy: str, row: str, more: list[str], why: str, demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(HEADER.replace("\n", f",category\na,1,digits,1,256,rigid\nb,2,digits,{row}\n"))
    arguments = ["--trace", str(trace), "--profiles", str(demo), "--cluster", "fast:2x8", "--policy", policy, *more]
    assert main(["simulate", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert f"warning: {policy}, t: 1 of 2 jobs could not be completed and are not in the figures" in captured.err
    assert f"t.csv, line 3: job b can never run: {why}" in captured.err
    (result,) = json.loads(captured.out)["policies"]
    assert result["jobs"] == 1 and [job["name"] for job in result["unfinished"]] == ["b"]
    trace.write_text(HEADER.replace("\n", f",category\nb,2,digits,{row}\n"))
    assert main(["simulate", *arguments]) == 2
    assert f"error: {policy}: no job can be completed on this cluster" in capsys.readouterr().err
