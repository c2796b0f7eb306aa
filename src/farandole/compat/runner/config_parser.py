"""`horovod.runner.common.util.config_parser`: one table of horovodrun's settings.

Each has an attribute of the parsed arguments (a flag), a key in the configuration file, and a variable that the workers
read. A flag takes precedence over the file, wherever it is on the command line, and both over the environment.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from farandole.errors import SpecError

HOROVOD_FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
HOROVOD_CYCLE_TIME = "HOROVOD_CYCLE_TIME"
HOROVOD_CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY"
HOROVOD_HIERARCHICAL_ALLREDUCE = "HOROVOD_HIERARCHICAL_ALLREDUCE"
HOROVOD_HIERARCHICAL_ALLGATHER = "HOROVOD_HIERARCHICAL_ALLGATHER"
HOROVOD_TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE"
HOROVOD_AUTOTUNE = "HOROVOD_AUTOTUNE"
HOROVOD_AUTOTUNE_LOG = "HOROVOD_AUTOTUNE_LOG"
HOROVOD_AUTOTUNE_WARMUP_SAMPLES = "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"
HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE = "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"
HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES = "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"
HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE = "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"
HOROVOD_TIMELINE = "HOROVOD_TIMELINE"
HOROVOD_TIMELINE_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES"
HOROVOD_STALL_CHECK_DISABLE = "HOROVOD_STALL_CHECK_DISABLE"
HOROVOD_STALL_CHECK_TIME_SECONDS = "HOROVOD_STALL_CHECK_TIME_SECONDS"
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
HOROVOD_MPI_THREADS_DISABLE = "HOROVOD_MPI_THREADS_DISABLE"
HOROVOD_NUM_NCCL_STREAMS = "HOROVOD_NUM_NCCL_STREAMS"
HOROVOD_THREAD_AFFINITY = "HOROVOD_THREAD_AFFINITY"
HOROVOD_GLOO_TIMEOUT_SECONDS = "HOROVOD_GLOO_TIMEOUT_SECONDS"
HOROVOD_LOG_LEVEL = "HOROVOD_LOG_LEVEL"
HOROVOD_LOG_HIDE_TIME = "HOROVOD_LOG_HIDE_TIME"

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


_SWITCH = (bool,)
_WHOLE = (int,)
_NUMBER = (int, float)
_TEXT = (str,)
_CORES = (int, str)


def _megabytes(value: int) -> str:
    return str(value * 1024 * 1024)


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _negated(value: bool) -> str:
    return str(int(not value))


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    attribute: str
    key: str
    """`section.name` in the configuration file."""
    variable: str
    kind: tuple[type, ...]
    """The types that the value may have in the file."""
    to_text: Callable[[Any], str] = _as_text
    """Converts the value to the variable's text."""
    only_with: str | None = None
    """The attribute that must be set for this one to have an effect."""
    most: float | None = None
    """The largest valid number, if there is a limit. Negative numbers are never valid."""
    negated_key: bool = False
    """Whether the key in the file means the opposite."""


SETTINGS = (
    Setting("fusion_threshold_mb", "params.fusion_threshold_mb", HOROVOD_FUSION_THRESHOLD, _WHOLE, _megabytes),
    Setting("cycle_time_ms", "params.cycle_time_ms", HOROVOD_CYCLE_TIME, _NUMBER),
    Setting("cache_capacity", "params.cache_capacity", HOROVOD_CACHE_CAPACITY, _WHOLE),
    Setting("hierarchical_allreduce", "params.hierarchical_allreduce", HOROVOD_HIERARCHICAL_ALLREDUCE, _SWITCH),
    Setting("hierarchical_allgather", "params.hierarchical_allgather", HOROVOD_HIERARCHICAL_ALLGATHER, _SWITCH),
    Setting("torus_allreduce", "params.torus_allreduce", HOROVOD_TORUS_ALLREDUCE, _SWITCH),
    Setting("autotune", "autotune.enabled", HOROVOD_AUTOTUNE, _SWITCH),
    Setting("autotune_log_file", "autotune.log_file", HOROVOD_AUTOTUNE_LOG, _TEXT, only_with="autotune"),
    Setting(
        "autotune_warmup_samples",
        "autotune.warmup_samples",
        HOROVOD_AUTOTUNE_WARMUP_SAMPLES,
        _WHOLE,
        only_with="autotune",
    ),
    Setting(
        "autotune_steps_per_sample",
        "autotune.steps_per_sample",
        HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE,
        _WHOLE,
        only_with="autotune",
    ),
    Setting(
        "autotune_bayes_opt_max_samples",
        "autotune.bayes_opt_max_samples",
        HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES,
        _WHOLE,
        only_with="autotune",
    ),
    Setting(
        "autotune_gaussian_process_noise",
        "autotune.gaussian_process_noise",
        HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE,
        _NUMBER,
        only_with="autotune",
        most=1,
    ),
    Setting("timeline_filename", "timeline.filename", HOROVOD_TIMELINE, _TEXT),
    Setting(
        "timeline_mark_cycles",
        "timeline.mark_cycles",
        HOROVOD_TIMELINE_MARK_CYCLES,
        _SWITCH,
        only_with="timeline_filename",
    ),
    Setting("no_stall_check", "stall_check.enabled", HOROVOD_STALL_CHECK_DISABLE, _SWITCH, negated_key=True),
    Setting(
        "stall_check_warning_time_seconds",
        "stall_check.warning_time_seconds",
        HOROVOD_STALL_CHECK_TIME_SECONDS,
        _NUMBER,
    ),
    Setting(
        "stall_check_shutdown_time_seconds",
        "stall_check.shutdown_time_seconds",
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS,
        _NUMBER,
    ),
    Setting("mpi_threads_disable", "library_options.mpi_threads_disable", HOROVOD_MPI_THREADS_DISABLE, _SWITCH),
    Setting("num_nccl_streams", "library_options.num_nccl_streams", HOROVOD_NUM_NCCL_STREAMS, _WHOLE),
    Setting("thread_affinity", "library_options.thread_affinity", HOROVOD_THREAD_AFFINITY, _CORES),
    Setting("gloo_timeout_seconds", "library_options.gloo_timeout_seconds", HOROVOD_GLOO_TIMEOUT_SECONDS, _WHOLE),
    Setting("log_level", "logging.level", HOROVOD_LOG_LEVEL, _TEXT),
    Setting("log_with_timestamp", "logging.with_timestamp", HOROVOD_LOG_HIDE_TIME, _SWITCH, _negated),
)


def read_config(filename: str) -> Mapping[str, Any]:
    """Read a configuration file.

    Raises:
        ValueError: it cannot be read, or is not YAML with sections.
    """
    import yaml  # type: ignore[import-untyped]  # It comes with farandole-horovod, and only this needs it.

    try:
        with open(filename) as file:
            config = yaml.safe_load(file)
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(f"the configuration file {filename} cannot be read: {error}") from None
    if config is not None and not isinstance(config, dict):
        raise SpecError(f"the configuration file {filename} has no sections", "such as params: and timeline:")
    return config or {}


def set_args_from_config(args: Namespace, config: Mapping[str, Any]) -> None:
    """Set the attributes that no flag has set from the configuration file. Unknown keys are ignored.

    Raises:
        ValueError: a section has no keys, or a value is of the wrong kind.
    """
    if args.use_gloo is None and args.use_mpi is None and args.use_jsrun is None:
        controller = str(config.get("controller", "")).lower()
        args.use_gloo = True if controller == "gloo" else None
        args.use_mpi = True if controller == "mpi" else None
    for setting in SETTINGS:
        value = _look_up(config, setting)
        if value is not None and getattr(args, setting.attribute) is None:
            setattr(args, setting.attribute, not value if setting.negated_key else value)


def _look_up(config: Mapping[str, Any], setting: Setting) -> Any:
    section, _, name = setting.key.partition(".")
    keys = config.get(section)
    if keys is None:
        return None
    if not isinstance(keys, dict):
        raise SpecError(f"in the configuration file, {section} is {keys!r}, but should have keys such as {name}")
    value = keys.get(name)
    # A bool is an int to Python.
    if value is not None and (not isinstance(value, setting.kind) or isinstance(value, bool) != (bool in setting.kind)):
        kinds = " or ".join(kind.__name__ for kind in setting.kind)
        raise SpecError(f"in the configuration file, {setting.key} is {value!r}, but should be of the kind {kinds}")
    return value


def validate_config_args(args: Namespace) -> None:
    """Check numbers and the log level, from whichever source.

    Raises:
        ValueError: a value is not valid.
    """
    for setting in SETTINGS:
        value = getattr(args, setting.attribute)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value < 0:
            raise SpecError(f"{setting.attribute}={value} must be >= 0")
        if setting.most is not None and value > setting.most:
            raise SpecError(f"{setting.attribute}={value} must be <= {setting.most:g}")
    if args.log_level is not None and args.log_level not in LOG_LEVELS:
        raise SpecError(f"there is no log level {args.log_level!r}", f"choose from {', '.join(LOG_LEVELS)}")


def set_env_from_args(env: MutableMapping[str, str], args: Namespace) -> MutableMapping[str, str]:
    """Set the workers' variables from flags and configuration file; others are not changed."""
    for setting in SETTINGS:
        value = getattr(args, setting.attribute)
        asked_for = setting.only_with is None or bool(getattr(args, setting.only_with))
        if value is not None and asked_for:
            env[setting.variable] = setting.to_text(value)
    return env
