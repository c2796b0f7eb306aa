from __future__ import annotations

import json

import pytest

from farandole.base.settings.table import SETTINGS, Settings
from farandole.errors import SettingError
from farandole.worker.core import binding
from farandole.worker.core.engine import Engine


def test_an_empty_environment_gives_the_defaults():
    assert Settings.from_environment({}) == Settings()
    assert Settings.from_environment({"FARANDOLE_TRANSPORT": "", "HOROVOD_FUSION_THRESHOLD": ""}) == Settings()


def test_values():
    settings = Settings.from_environment(
        {
            "FARANDOLE_ROSTER": "127.0.0.1:4711",
            "FARANDOLE_SECRET": "00ff",
            "FARANDOLE_RANK": "3",
            "FARANDOLE_JOB": "4f0c",
            "FARANDOLE_LISTEN": "10.0.0.1,::1",
            "FARANDOLE_NETWORK": "eth0, 10.0.0.0/8",
            "FARANDOLE_START_TIMEOUT": "2.5",
            "FARANDOLE_FUSION_THRESHOLD": "0",
            "FARANDOLE_TRANSPORT": "TCP",
            "FARANDOLE_SPIN_SECONDS": "-1",
            "FARANDOLE_LOG_LEVEL": "Info",
            "FARANDOLE_PROGRESS": "0.5",
            "FARANDOLE_CHECKPOINT_DIR": "out/checkpoints",
            "FARANDOLE_RESUME": "AUTO",
        }
    )
    assert settings == Settings(
        roster="127.0.0.1:4711",
        secret=b"\0\xff",
        rank=3,
        job="4f0c",
        listen="10.0.0.1,::1",
        network=("eth0", "10.0.0.0/8"),
        start_timeout=2.5,
        fusion_threshold=0,
        transport="tcp",
        spin_seconds=-1.0,
        log_level=2,
        progress=0.5,
        checkpoint_dir="out/checkpoints",
        resume="auto",
    )


def test_horovods_variables_of_autotuning():
    settings = Settings.from_environment(
        {
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_LOG": "log.csv",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "20",
        }
    )
    assert settings == Settings(
        autotune=True,
        autotune_log="log.csv",
        autotune_warmup_samples=0,
        autotune_steps_per_sample=5,
        autotune_max_samples=20,
    )


@pytest.mark.parametrize(
    "variable", ["AUTOTUNE_STEPS_PER_SAMPLE", "AUTOTUNE_MAX_SAMPLES", "CHUNK_BYTES", "RING_BYTES", "AUTOTUNE"]
)
def test_invalid_autotuning_values_are_refused(variable: str):
    value = "0" if "SAMPLE" in variable else "many"
    with pytest.raises(SettingError, match=f"FARANDOLE_{variable}"):
        Settings.from_environment({f"FARANDOLE_{variable}": value})


def test_horovods_variables_count_when_ours_are_not_set():
    environment = {"HOROVOD_FUSION_THRESHOLD": "1024", "HOROVOD_LOG_LEVEL": "fatal", "HOROVOD_START_TIMEOUT": "9"}
    settings = Settings.from_environment(environment)
    assert (settings.fusion_threshold, settings.log_level, settings.start_timeout) == (1024, 4, 9.0)
    stalls = Settings.from_environment(
        {
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "2",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
        }
    )
    assert (stalls.stall_warning_seconds, stalls.stall_shutdown_seconds, stalls.stall_check_disable) == (2.0, 5.0, True)
    environment["FARANDOLE_FUSION_THRESHOLD"] = "2048"
    assert Settings.from_environment(environment).fusion_threshold == 2048


def test_silence_limit_is_longer_in_jobs_of_fixed_size():
    assert Settings().silence_seconds == 5.0
    assert Settings(elastic=True).silence_seconds == 1.0
    for elastic in ("0", "1"):
        environment = {"FARANDOLE_ELASTIC": elastic, "FARANDOLE_FAILURE_DEADLINE": "2.5"}
        assert Settings.from_environment(environment).silence_seconds == 2.5


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("FARANDOLE_FUSION_THRESHOLD", "128MB", "a number of bytes"),
        ("HOROVOD_FUSION_THRESHOLD", "-1", "a number of bytes"),
        ("FARANDOLE_TRANSPORT", "rdma", "one of auto, shm, tcp"),
        ("FARANDOLE_FAILURE_DEADLINE", "0", "a number of seconds above 0"),
        ("FARANDOLE_START_TIMEOUT", "nan", "a number of seconds above 0"),
        ("FARANDOLE_LOG_LEVEL", "loud", "one of trace, debug"),
        ("FARANDOLE_RANK", "first", "a rank"),
        ("FARANDOLE_ROSTER", "10.0.0.1", "host:port"),
        ("FARANDOLE_ROSTER", "10.0.0.1:1,::1:2", "host:port"),
        ("FARANDOLE_ROSTER", "10.0.0.1:0", "host:port"),
        ("FARANDOLE_ROSTER", "10.0.0.1:65536", "host:port"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1", "a number of seconds"),
        ("HOROVOD_STALL_CHECK_DISABLE", "maybe", "0 or 1 (default: 0)"),
        ("FARANDOLE_START_TIMEOUT", "-1", "a number of seconds above 0 (default: 30)"),
        ("FARANDOLE_START_TIMEOUT", "1e12", "a number of seconds above 0, at most 1000000000 (default: 30)"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "inf", "a number of seconds, at most 1000000000 (default: 60)"),
        ("FARANDOLE_ARENA_BYTES", "1", "0 or a number of bytes, at least 8192 (default: 0)"),
        ("FARANDOLE_ARENA_BYTES", str(1 << 48), "at least 8192, at most 140737488355328 (default: 0)"),
        ("FARANDOLE_FUSION_THRESHOLD", str(1 << 63), "a number of bytes, at most 9223372036854775807"),
        ("FARANDOLE_CHECK_PARAMETERS", str(1 << 70), "a number of steps"),
        ("FARANDOLE_ELASTIC_STATE_AT_ONCE", str(1 << 70), "a number of bytes"),
        ("FARANDOLE_TIMELINE_LIMIT_MB", str(1 << 70), "a number of megabytes"),
        ("FARANDOLE_AUTOTUNE_WARMUP_SAMPLES", str(1 << 31), "a number of samples"),
        ("FARANDOLE_AUTOTUNE_MAX_SAMPLES", str(1 << 31), "a number of samples above 0"),
        ("FARANDOLE_AGREEMENT_FANOUT", str(1 << 31), "a number that is not negative"),
        ("FARANDOLE_SPIN_SECONDS", "inf", "a number of seconds"),
        ("FARANDOLE_SPIN_SECONDS", "nan", "a number of seconds"),
        ("FARANDOLE_LISTEN", "localhost", "IP addresses in numbers"),
        ("FARANDOLE_LISTEN", "10.0.0.1;10.0.0.2", "IP addresses in numbers"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_what_it_should_be(variable, value, expected):
    with pytest.raises(SettingError) as caught:
        Settings.from_environment({variable: value})
    text = str(caught.value)
    assert variable in text and repr(value) in text and expected in text


def test_every_setting_that_the_engine_refuses_is_refused_before_and_with_its_variable():
    """The engine's own errors do not name variables. Here it has every number that the table takes."""
    for name, row in SETTINGS.items():
        for text in ("-1", "0", str((1 << 31) - 1), str((1 << 63) - 1), "1e400", "-0.5", "words"):
            try:
                settings = Settings.from_environment({row.variables[0]: text})
            except SettingError as error:
                assert row.variables[0] in str(error)
                continue
            if not row.engine or name in RESERVES or (isinstance(row.parse(text), str) and name != "algorithm"):
                continue
            try:
                Engine(binding.load(), settings)
            except SettingError as error:
                assert row.variables[0] in str(error)


# A number that is valid but too large for this machine is an error of its memory.
RESERVES = {"arena_bytes", "staging_bytes"}


def test_engine_settings_match_the_engine_options():
    taken = set(json.loads(binding.load().farandole_setting_names()))
    rows = {name for name, row in SETTINGS.items() if row.engine}
    assert rows == taken - {"stream_bytes"}, "this knob is tuned only"
    settings = Settings(chunk_bytes=4096, stall_warning_seconds=2.5, autotune=True, host_key="a=b")
    given = settings.for_engine()
    assert given.keys() == rows - {
        "fusion_threshold",
        "small_bytes",
        "ring_bytes",
        "link_chunk_bytes",
        "mpi_library",
        "nccl_library",
        "agreement_fanout",
    }
    wanted = {"chunk_bytes": "4096", "stall_warning_seconds": "2.5", "autotune": "1", "failure_deadline": "5"}
    assert wanted.items() <= given.items()
    without = Settings(stall_check_disable=True, stall_shutdown_seconds=9.0, failure_deadline=0.25).for_engine()
    assert (without["stall_warning_seconds"], without["stall_shutdown_seconds"]) == ("0", "0")
    assert without["failure_deadline"] == "0.25"


def test_the_secret_is_never_shown():
    assert "00ff" not in repr(Settings(secret=b"\0\xff")) and "xff" not in repr(Settings(secret=b"\0\xff"))
    with pytest.raises(SettingError) as caught:
        Settings.from_environment({"FARANDOLE_SECRET": "not-hex-at-all"})
    assert "not-hex" not in str(caught.value)


def test_every_setting_has_its_variable():
    names = [row.variables for row in SETTINGS.values()]
    assert ("FARANDOLE_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD") in names
    assert all(first.startswith("FARANDOLE_") for first, *_ in names)
