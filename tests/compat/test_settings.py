"""The configuration file, what wins over what, and the variables that workers get."""

from __future__ import annotations

import argparse
import itertools
import os
import re
from pathlib import Path

import pytest

from farandole.base.settings.table import SETTINGS, Settings
from farandole.compat.runner import config_parser
from farandole.compat.runner.launch import parse_args, with_our_names
from farandole.compat.runner.unused_variables import UNUSED, without_effect

EVERYTHING = """\
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: false
  torus_allreduce: true
autotune:
  enabled: true
  log_file: tuned.txt
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9
timeline:
  filename: timeline.json
  mark_cycles: true
stall_check:
  enabled: true
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  mpi_threads_disable: true
  num_nccl_streams: 2
  thread_affinity: 1
  gloo_timeout_seconds: 60
logging:
  level: INFO
  with_timestamp: false
"""

# What horovodrun gives its workers for all of the above.
EVERY_VARIABLE = {
    "HOROVOD_FUSION_THRESHOLD": str(32 * 1024 * 1024),
    "HOROVOD_CYCLE_TIME": "10",
    "HOROVOD_CACHE_CAPACITY": "2048",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
    "HOROVOD_TORUS_ALLREDUCE": "1",
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_LOG": "tuned.txt",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "5",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "20",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "50",
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.9",
    "HOROVOD_TIMELINE": "timeline.json",
    "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    "HOROVOD_STALL_CHECK_DISABLE": "0",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "240",
    "HOROVOD_MPI_THREADS_DISABLE": "1",
    "HOROVOD_NUM_NCCL_STREAMS": "2",
    "HOROVOD_THREAD_AFFINITY": "1",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "60",
    "HOROVOD_LOG_LEVEL": "INFO",
    "HOROVOD_LOG_HIDE_TIME": "1",
}


def parse(text: str) -> argparse.Namespace:
    return parse_args(["-np", "2", *text.split(), "python", "train.py"])


def variables(text: str, env: dict[str, str] | None = None) -> dict[str, str]:
    return dict(config_parser.set_env_from_args({} if env is None else env, parse(text)))


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Return a flag that names a file with every setting."""
    (tmp_path / "config.yaml").write_text(EVERYTHING)
    return f"--config-file {tmp_path / 'config.yaml'}"


def test_every_key_of_the_file(config: str) -> None:
    assert variables(config) == EVERY_VARIABLE
    assert {setting.variable for setting in config_parser.SETTINGS} == set(EVERY_VARIABLE)
    args = parse(config)
    assert (args.use_gloo, args.use_mpi, args.use_jsrun) == (True, None, None)
    assert (args.fusion_threshold_mb, args.no_stall_check, args.log_with_timestamp) == (32, False, False)


def test_a_flag_wins_over_the_file_wherever_it_stands(config: str) -> None:
    for order in itertools.permutations(["--fusion-threshold-mb 256", config, "--no-hierarchical-allreduce"]):
        args = parse(" ".join(order))
        assert (args.fusion_threshold_mb, args.hierarchical_allreduce, args.cache_capacity) == (256, False, 2048)


def test_a_flag_that_turns_off_wins_over_the_file_too(config: str) -> None:
    args = parse(f"{config} --no-autotune --no-stall-check --log-with-timestamp --no-timeline-mark-cycles --mpi")
    assert (args.autotune, args.no_stall_check, args.log_with_timestamp) == (False, True, True)
    assert (args.timeline_mark_cycles, args.use_gloo, args.use_mpi) == (False, None, True)


@pytest.mark.parametrize(
    ("text", "attribute", "value"),
    [
        ("controller: MPI", "use_mpi", True),
        ("stall_check: {enabled: false}", "no_stall_check", True),
        ("autotune: {enabled: false}", "autotune", False),
        ("logging: {with_timestamp: true}", "log_with_timestamp", True),
        ("logging: {hide_timestamp: true}", "log_with_timestamp", None),  # Such a key there never was.
        ("library_options: {thread_affinity: '0,1'}", "thread_affinity", "0,1"),
        ("nonsense: {a: 1}\nparams: {b: 2}", "cache_capacity", None),
        ("params:", "cache_capacity", None),
        ("", "cache_capacity", None),
    ],
)
def test_file(text: str, attribute: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert getattr(parse(f"--config-file {tmp_path / 'c.yaml'}"), attribute) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params: {cycle_time_ms: -1}", "cycle_time_ms=-1 must be >= 0"),
        ("logging: {level: LOUD}", "no log level 'LOUD'"),
        ("params: [", "cannot be read"),
        ("just words", "has no sections"),
        ("params: just words", "params is 'just words', but should have keys"),
        ("a: !!python/object/apply:os.system ['true']", "cannot be read"),
        ("params: {cache_capacity: many}", "params.cache_capacity is 'many', but should be of the kind int"),
        ("params: {cache_capacity: true}", "params.cache_capacity is True"),
        ("autotune: {enabled: 1}", "autotune.enabled is 1, but should be of the kind bool"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(f"--config-file {tmp_path / 'c.yaml'}")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.yaml cannot be read"):
        parse(f"--config-file {tmp_path / 'nowhere.yaml'}")


# --- variables ------------------------------------------------------------------------------------------------------


def test_options_that_were_not_given_are_left_to_the_environment() -> None:
    env = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "1800", "HOROVOD_FUSION_THRESHOLD": "5"}
    assert variables("", dict(env)) == env
    assert variables("--fusion-threshold-mb 1", dict(env)) == {**env, "HOROVOD_FUSION_THRESHOLD": "1048576"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--cycle-time-ms 20", {"HOROVOD_CYCLE_TIME": "20.0"}),
        ("--fusion-threshold-mb 0", {"HOROVOD_FUSION_THRESHOLD": "0"}),
        ("--hierarchical-allgather", {"HOROVOD_HIERARCHICAL_ALLGATHER": "1"}),
        ("--no-torus-allreduce", {"HOROVOD_TORUS_ALLREDUCE": "0"}),
        ("--autotune-log-file log", {}),
        ("--no-autotune --autotune-log-file log", {"HOROVOD_AUTOTUNE": "0"}),
        ("--autotune --autotune-log-file log", {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "log"}),
        ("--timeline-mark-cycles", {}),
        ("--timeline-filename t", {"HOROVOD_TIMELINE": "t"}),
        ("--no-stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        ("--stall-check-warning-time-seconds 10", {"HOROVOD_STALL_CHECK_TIME_SECONDS": "10"}),
        ("--log-level DEBUG", {"HOROVOD_LOG_LEVEL": "DEBUG"}),
        ("--log-hide-timestamp", {"HOROVOD_LOG_HIDE_TIME": "1"}),
        ("--log-with-timestamp", {"HOROVOD_LOG_HIDE_TIME": "0"}),
    ],
)
def test_variables_of_flags(flags: str, expected: dict[str, str]) -> None:
    assert variables(flags) == expected


def test_a_flag_wins_in_the_worker_over_our_own_variable_too() -> None:
    inherited = {"FARANDOLE_FUSION_THRESHOLD": "7", "FARANDOLE_LOG_LEVEL": "off"}
    chosen = with_our_names(variables("--fusion-threshold-mb 1 --log-level FATAL --cycle-time-ms 3"))
    settings = Settings.from_environment({**inherited, **chosen})
    assert settings.fusion_threshold == 1024 * 1024
    assert settings.log_level == Settings.from_environment({"HOROVOD_LOG_LEVEL": "fatal"}).log_level
    assert chosen["HOROVOD_CYCLE_TIME"] == "3.0"


def test_every_value_that_horovodrun_passes_on_can_be_read_by_a_worker() -> None:
    settings = Settings.from_environment(with_our_names(EVERY_VARIABLE))
    assert settings.fusion_threshold == 32 * 1024 * 1024
    levels = [Settings.from_environment({"HOROVOD_LOG_LEVEL": level}).log_level for level in config_parser.LOG_LEVELS]
    assert levels == sorted(levels) and len(set(levels)) > 3


def test_each_variable_of_horovodrun_is_read_or_has_a_reason_why_not() -> None:
    read = {row.horovod for row in SETTINGS.values()}
    assert not read & set(UNUSED)
    assert {setting.variable for setting in config_parser.SETTINGS} <= read | set(UNUSED)


def test_variables_without_effect_are_reported_with_the_reason() -> None:
    assert without_effect({}) == without_effect({"HOROVOD_FUSION_THRESHOLD": "1", "HOROVOD_GPU_OPERATIONS": ""}) == {}
    set_ones = {"HOROVOD_GPU_ALLREDUCE": "NCCL", "HOROVOD_GPU_BROADCAST": "MPI", "HOROVOD_NUM_NCCL_STREAMS": "2"}
    assert without_effect(set_ones) == {
        "each GPU has one stream for collectives": ["HOROVOD_NUM_NCCL_STREAMS"],
        "NCCL is used where it can be; FARANDOLE_GPU chooses": ["HOROVOD_GPU_ALLREDUCE", "HOROVOD_GPU_BROADCAST"],
    }


def test_nothing_is_taken_from_this_process() -> None:
    assert not [name for name in os.environ if name.startswith("HOROVOD_")]
