"""horovodrun's command line: every flag, its abbreviations, what excludes what, and what is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest

import horovod
from farandole.compat.runner import _HorovodArgs
from farandole.compat.runner.launch import parse_args


def parse(text: str) -> argparse.Namespace:
    return parse_args(["-np", "2", *text.split()])


FLAGS: Sequence[tuple[str, str, Any]] = [
    ("--num-proc 3", "num_proc", 3),
    ("-np 3", "num_proc", 3),
    ("--disable-cache", "disable_cache", True),
    ("--start-timeout 7", "start_timeout", 7),
    ("--network-interfaces eth0,eth1", "nics", {"eth0", "eth1"}),
    ("--network-interface eth0", "nics", {"eth0"}),
    ("--network-interface a --network-interface b --network-interfaces c,d", "nics", {"a", "b", "c", "d"}),
    ("--output-filename logs", "output_filename", "logs"),
    ("--verbose", "verbose", True),
    ("-p 2222", "ssh_port", 2222),
    ("--ssh-port 2222", "ssh_port", 2222),
    ("-i key", "ssh_identity_file", "key"),
    ("--ssh-identity-file key", "ssh_identity_file", "key"),
    ("--fusion-threshold-mb 0", "fusion_threshold_mb", 0),
    ("--cycle-time-ms 3.5", "cycle_time_ms", 3.5),
    ("--cache-capacity 0", "cache_capacity", 0),
    ("--hierarchical-allreduce", "hierarchical_allreduce", True),
    ("--no-hierarchical-allreduce", "hierarchical_allreduce", False),
    ("--hierarchical-allgather", "hierarchical_allgather", True),
    ("--no-hierarchical-allgather", "hierarchical_allgather", False),
    ("--torus-allreduce", "torus_allreduce", True),
    ("--no-torus-allreduce", "torus_allreduce", False),
    ("--autotune", "autotune", True),
    ("--no-autotune", "autotune", False),
    ("--autotune-log-file log", "autotune_log_file", "log"),
    ("--autotune-warmup-samples 1", "autotune_warmup_samples", 1),
    ("--autotune-steps-per-sample 5", "autotune_steps_per_sample", 5),
    ("--autotune-bayes-opt-max-samples 9", "autotune_bayes_opt_max_samples", 9),
    ("--autotune-gaussian-process-noise 1", "autotune_gaussian_process_noise", 1.0),
    ("--min-np 1", "min_num_proc", 1),
    ("--min-num-proc 1", "min_num_proc", 1),
    ("--max-np 4", "max_num_proc", 4),
    ("--max-num-proc 4", "max_num_proc", 4),
    ("--slots-per-host 2", "slots", 2),
    ("--slots 2", "slots", 2),
    ("--elastic-timeout 8", "elastic_timeout", 8),
    ("--reset-limit 1", "reset_limit", 1),
    ("--blacklist-cooldown-range 10 100", "cooldown_range", [10, 100]),
    ("--timeline-filename t.json", "timeline_filename", "t.json"),
    ("--timeline-mark-cycles", "timeline_mark_cycles", True),
    ("--no-timeline-mark-cycles", "timeline_mark_cycles", False),
    ("--no-stall-check", "no_stall_check", True),
    ("--stall-check", "no_stall_check", False),
    ("--stall-check-warning-time-seconds 5", "stall_check_warning_time_seconds", 5),
    ("--stall-check-shutdown-time-seconds 6", "stall_check_shutdown_time_seconds", 6),
    ("--mpi-threads-disable", "mpi_threads_disable", True),
    ("--no-mpi-threads-disable", "mpi_threads_disable", False),
    ("--mpi-args=--oversubscribe", "mpi_args", "--oversubscribe"),
    ("--tcp", "tcp_flag", True),
    ("--binding-args=-x", "binding_args", "-x"),
    ("--num-nccl-streams 2", "num_nccl_streams", 2),
    ("--thread-affinity 1", "thread_affinity", 1),
    ("--gloo-timeout-seconds 60", "gloo_timeout_seconds", 60),
    ("--log-level TRACE", "log_level", "TRACE"),
    ("--log-with-timestamp", "log_with_timestamp", True),
    ("--log-without-timestamp", "log_with_timestamp", False),
    ("--log-hide-timestamp", "log_with_timestamp", False),
    ("--no-log-hide-timestamp", "log_with_timestamp", True),
    ("-prefix-timestamp", "prefix_output_with_timestamp", True),
    ("--prefix-output-with-timestamp", "prefix_output_with_timestamp", True),
    ("-H a:1,b:2", "hosts", "a:1,b:2"),
    ("--hosts a:1", "hosts", "a:1"),
    ("-hostfile file", "hostfile", "file"),
    ("--hostfile file", "hostfile", "file"),
    ("--host-discovery-script find.sh", "host_discovery_script", "find.sh"),
    ("--gloo", "use_gloo", True),
    ("--mpi", "use_mpi", True),
    ("--jsrun", "use_jsrun", True),
    # The last ones are abbreviations.
    ("--min-num 1", "min_num_proc", 1),
    ("--fusion 8", "fusion_threshold_mb", 8),
    ("--host-disc find.sh", "host_discovery_script", "find.sh"),
    ("--reset 3", "reset_limit", 3),
    ("--timeline-f t", "timeline_filename", "t"),
]
ABBREVIATED = 5


@pytest.mark.parametrize(("flags", "attribute", "value"), FLAGS)
def test_flag(flags: str, attribute: str, value: object) -> None:
    assert getattr(parse(f"{flags} python train.py"), attribute) == value
    assert getattr(parse("python train.py"), attribute) != value  # It was the flag that did it.


def test_the_command_is_all_that_follows() -> None:
    # Several flags begin with --log; after the command that is nobody's abbreviation.
    args = parse("--verbose python train.py -np 7 --no-stall-check --verbose --log file")
    assert args.command == ["python", "train.py", "-np", "7", "--no-stall-check", "--verbose", "--log", "file"]
    assert (args.num_proc, args.no_stall_check) == (2, None)


@pytest.mark.parametrize(
    "flags",
    [
        "-H a:1 --hostfile file",
        "--hosts a:1 --host-discovery-script script",
        "-hostfile file --host-discovery-script script",
        "--gloo --mpi",
        "--mpi --jsrun",
        "--autotune --no-autotune",
        "--hierarchical-allreduce --no-hierarchical-allreduce",
        "--no-stall-check --stall-check",
        "--log-with-timestamp --log-without-timestamp",
        "-prefix-timestamp --log-hide-timestamp",
    ],
)
def test_conflicting_options_are_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(flags)
    assert exit_.value.code == 2
    told = capsys.readouterr().err
    assert "not allowed with argument" in told and "hint: see horovodrun --help" in told


@pytest.mark.parametrize(
    "flags",
    [
        "--blacklist-cooldown-range 0 10",
        "--blacklist-cooldown-range 10 3601",
        "--blacklist-cooldown-range 10 9",
        "--blacklist-cooldown-range 10",
        "--log-level LOUD",
        "--cycle-time-ms soon",
        "--start-timeout 1.5",
        "--no-such-flag",
        "--auto",  # Several flags begin so.
    ],
)
def test_invalid_arguments_are_refused_by_argparse(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(flags)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    "flag",
    [
        "--fusion-threshold-mb",
        "--cycle-time-ms",
        "--cache-capacity",
        "--autotune-warmup-samples",
        "--autotune-steps-per-sample",
        "--autotune-bayes-opt-max-samples",
        "--autotune-gaussian-process-noise",
        "--stall-check-warning-time-seconds",
        "--stall-check-shutdown-time-seconds",
        "--num-nccl-streams",
        "--thread-affinity",
        "--gloo-timeout-seconds",
    ],
)
def test_negative_numbers_are_refused(flag: str) -> None:
    name = flag[2:].replace("-", "_")
    with pytest.raises(ValueError, match=rf"{name}=-1(\.0)? must be >= 0"):
        parse(f"{flag} -1")
    assert getattr(parse(f"{flag} 0"), name) == 0


def test_noise_is_at_most_one() -> None:
    with pytest.raises(ValueError, match=r"autotune_gaussian_process_noise=1\.1 must be <= 1"):
        parse("--autotune-gaussian-process-noise 1.1")


def test_the_number_of_workers_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_args(["python", "train.py"])
    assert exit_.value.code == 2
    assert "-np/--num-proc" in capsys.readouterr().err


def test_a_list_of_interfaces_where_one_belongs_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="--network-interfaces"):
        assert parse("--network-interface a,b").nics == {"a", "b"}


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_args([flag])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"{horovod.__version__}\n"


def test_help_tells_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--help"])
    told = capsys.readouterr().out
    whole = {flags.split()[0].partition("=")[0] for flags, _, _ in FLAGS[:-ABBREVIATED]}
    assert {flag for flag in whole if flag not in told} == {
        "--no-autotune",
        "--no-timeline-mark-cycles",
        "--no-mpi-threads-disable",
        "--log-with-timestamp",
        "--log-hide-timestamp",
        "--no-log-hide-timestamp",
    }


def test_arguments_as_an_object() -> None:
    args = _HorovodArgs()
    assert (args.num_proc, args.np, args.hosts, args.command, args.run_func) == (1, 1, None, [], None)
    args.np, args.min_np, args.max_np = 4, 2, 8
    assert (args.num_proc, args.min_num_proc, args.max_num_proc) == (4, 2, 8)
    args.num_proc = 5
    assert args.np == 5
    with pytest.raises(AttributeError, match="nonsense"):
        _ = args.nonsense
