"""How the command line asks for jobs whose workers come and go."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from farandole.control.cli import options
from farandole.control.cli.main import main
from farandole.control.launcher.job.elastic import Elastic
from farandole.errors import SpecError


def read(*arguments: str) -> Elastic | None:
    parser = argparse.ArgumentParser()
    options.add_hosts(parser)
    options.add_elastic(parser)
    return options.read_elastic(parser.parse_args(arguments))


def test_elastic_options_make_a_job_elastic() -> None:
    assert read("-np", "2") is None
    assert read("-H", "a,b", "--nnodes", "2") is None
    assert read("-np", "2", "--min-np", "1") == Elastic(1, None)
    assert read("-np", "2", "--max-np", "4") == Elastic(2, 4)
    assert read("-np", "3", "--spares", "1", "--grace", "5") == Elastic(3, None, spares=1, grace=5)


def test_options_are_accepted_in_the_spelling_of_torchrun() -> None:
    assert read("--nnodes", "1:4", "--nproc-per-node", "2") == Elastic(2, 8, slots=2)
    assert read("--nnodes", "2:2", "--nproc-per-node", "2") is None
    with pytest.raises(SpecError, match="--nnodes 4:1 is not a number of hosts"):
        read("--nnodes", "4:1")


def test_where_hosts_come_from() -> None:
    by_script = read("--min-np", "1", "--host-discovery-script", "./hosts.sh", "--slots", "4", "--reset-limit", "3")
    assert by_script == Elastic(1, None, discovery="script:./hosts.sh", slots=4, reset_limit=3)
    assert read("--min-np", "1", "--hosts-from", "dns:workers:8") == Elastic(1, None, discovery="dns:workers:8")


def test_preemption_notices_come_from_a_file_or_a_command() -> None:
    by_file = read("--min-np", "1", "--preemption-file", "/run/leaving", "--preemption-interval", "2")
    assert by_file == Elastic(1, None, preemption_file="/run/leaving", preemption_interval=2)
    assert read("-np", "2", "--preemption-command", "check") == Elastic(2, None, preemption_command="check")
    with pytest.raises(SystemExit):
        read("--min-np", "1", "--preemption-file", "x", "--preemption-command", "y")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host-discovery-script", "x"], "the minimum number of workers is missing"),
        (["--min-np", "2", "-np", "1"], "a start with 1 worker is outside the job's limits"),
        (["--min-np", "1", "--hosts-from", "nowhere"], "'nowhere' is not a valid host discovery"),
        (
            ["--min-np", "1", "--hosts-from", "file:x", "-H", "a:1"],
            "-H and --hostfile cannot be combined with host discovery",
        ),
        (["--min-np", "1", "-np", "2", "--launcher", "srun"], "--launcher srun starts all workers at once"),
        (["--min-np", "1", "--preemption-interval", "-1"], "cannot be checked every -1 s"),
        (["--min-np", "1", "--hosts-from", "file:/no/such/file"], "the host file /no/such/file cannot be read"),
    ],
)
def test_mistakes_are_reported(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments, "--dry-run", "true"]) == 2
    said = capsys.readouterr().err
    assert message in said and "hint: " in said


def test_the_dry_run_shows_what_is_started_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:4\n")
    arguments = ["--min-np", "1", "--max-np", "2", "--spares", "1", "--hosts-from", f"file:{hosts}"]
    assert main(["run", *arguments, "--dry-run", "true"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("3 workers on 1 host\n")
    source = f"hosts come from file:{hosts}"
    assert f"note           elastic: 1 to 2 workers, and 1 spare; {source}\n" in said
    assert "  worker 2\n" in said and "FARANDOLE_WORKER=2 FARANDOLE_ELASTIC=1" in said


def test_the_dry_run_shows_the_workers_to_begin_with_and_why_it_will_not_grow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "-np", "2", "--min-np", "1", "--max-np", "3", "-H", "localhost:2", "--dry-run", "true"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 workers on 1 host\n")
    assert "note           the hosts have 2 slots: the job stays below --max-np 3\n" in said
    assert main(["run", "-np", "2", "--min-np", "1", "--max-np", "3", "-H", "localhost:4", "--dry-run", "true"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 workers on 1 host\n") and "below --max-np" not in said
