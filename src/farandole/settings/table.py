"""The one table of settings, and the one reader of the environment on a worker.

Every setting is one field of `Settings` with its row: default, parser, what it expects, Horovod's variable, the flag of
`farandole run`, and whether the native engine takes it. The field's name gives the variable (`fusion_threshold` is read
from `FARANDOLE_FUSION_THRESHOLD`); the docstring below it is its description everywhere.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from farandole.errors import SettingError
from farandole.metrics.address import DEFAULT_PORT
from farandole.settings import values
from farandole.settings.declaration import Flag, Setting, as_text, row_of, setting

# How long a worker may say nothing, where the others go on without it, and where the job ends with it.
ELASTIC_SILENCE_SECONDS = 1.0
SILENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    """What the environment of a worker says. `Settings()` is what an empty environment says.

    It is a table, and has a field for each row.
    """

    roster: str | None = setting(None, values.roster, "host:port, with an IPv6 host in brackets; several with commas")
    """Address of the roster service; of several, separated by commas, the first that answers is taken. Not set: a
    world of one, without any network, unless another launcher, such as mpirun, has started this worker."""
    secret: bytes = setting(b"", values.secret, "hexadecimal digits", shown=False)
    """The job's secret, in hexadecimal; every connection proves it."""
    job: str = setting("", values.text, "the id that farandole run gave the job")
    """Set by our launcher, which serves the roster then. Without it, but with a roster and a size, rank 0 serves it."""
    job_key: str = setting("", values.text, "any text")
    """A text that tells this job from others of the same user, where the program that started it gives none."""
    rank: int = setting(0, values.count, "a rank")
    """This worker's number, by which the roster knows it."""
    listen: str = setting("", values.text, "addresses, separated by commas", engine=True)
    """Addresses that other hosts' workers may connect to. Empty is workers of this host only or, where another
    launcher has started them on several, all addresses of `network`."""
    network: tuple[str, ...] = setting((), values.names, "interfaces, addresses or networks, separated by commas")
    """Which of this machine's addresses a worker offers that no launcher of ours has started; empty is all of them."""
    start_timeout: float = setting(
        30.0,
        values.positive_seconds,
        "a number of seconds above 0",
        "HOROVOD_START_TIMEOUT",
        flag=Flag(
            "start-timeout",
            "seconds that workers wait for each other in init() (default: FARANDOLE_START_TIMEOUT, or 30)",
            metavar="S",
            type=float,
            group="starting",
        ),
        engine=True,
    )
    """Seconds within which all workers must have met."""
    fusion_threshold: int | None = setting(
        None,
        values.count,
        "a number of bytes",
        "HOROVOD_FUSION_THRESHOLD",
        flag=Flag(
            "fusion-threshold-mb",
            "fuse tensors up to this size; 0: never (default: 128)",
            metavar="MB",
            type=int,
            unit=1024 * 1024,
        ),
        unset="128 MiB",
        engine=True,
    )
    """Most bytes that are fused into one bucket; 0 fuses nothing. Rank 0's value counts for all."""
    chunk_bytes: int | None = setting(None, values.count, "a number of bytes", unset="1 MiB", engine=True)
    """What the workers of a host together have on its way through shared memory at a time. Rank 0's
    value counts for all, as for the next three; what is set is not tuned."""
    small_bytes: int | None = setting(None, values.count, "a number of bytes", unset="16 KiB", engine=True)
    """Up to this size, every worker of a host reduces everything instead of its slice."""
    ring_bytes: int | None = setting(None, values.count, "a number of bytes", unset="64 KiB", engine=True)
    """Above this size, hosts send few bytes rather than few messages."""
    link_chunk_bytes: int | None = setting(None, values.count, "a number of bytes", unset="256 KiB", engine=True)
    """The piece of a message that is pipelined between two hosts."""
    autotune: bool = setting(
        False,
        values.switch,
        "0 or 1",
        "HOROVOD_AUTOTUNE",
        flag=Flag("autotune", "find the fastest settings while training, and keep them"),
        engine=True,
    )
    """Look for the fastest of the values above while training goes on, and keep them. Rank 0's setting counts."""
    autotune_log: str | None = setting(
        None,
        values.text,
        "a path",
        "HOROVOD_AUTOTUNE_LOG",
        flag=Flag(
            "autotune-log-file",
            "write every sample that autotuning takes into this table (CSV)",
            metavar="FILE",
            needs="autotune",
            alone="logs nothing without autotuning",
        ),
    )
    """Table (CSV) into which rank 0 writes every sample that autotuning takes."""
    autotune_warmup_samples: int = setting(
        3, values.count, "a number of samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", engine=True
    )
    """Samples at the beginning whose speed does not count."""
    autotune_steps_per_sample: int = setting(
        10, values.positive_count, "a number of steps above 0", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", engine=True
    )
    """Steps that one sample is made of."""
    autotune_max_samples: int = setting(
        40,
        values.positive_count,
        "a number of samples above 0",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        engine=True,
    )
    """Samples that the search may take."""
    tuning: str | None = setting(
        None,
        values.text,
        "a path",
        flag=Flag("tuning", "use what autotuning found; with --autotune, keep it there", metavar="FILE"),
    )
    """File with what autotuning found: used as it is or, with autotuning, verified and kept there. Not set: it is not
    used or, with autotuning, a file of this set of hosts in the user's cache."""
    transport: str = setting(
        "auto",
        values.transport,
        f"one of {', '.join(values.TRANSPORTS)}",
        flag=Flag("transport", "how workers exchange tensors (default: auto)", choices=values.TRANSPORTS),
        engine=True,
    )
    """How workers of one host are connected: shared memory where it works (auto), or one way only."""
    backend: str = setting(
        "native",
        values.backend,
        f"one of {', '.join(values.BACKENDS)}",
        "HOROVOD_CPU_OPERATIONS",
        flag=Flag("backend", "what carries tensors between hosts (default: native)", choices=values.BACKENDS),
        engine=True,
    )
    """What carries tensors between hosts: farandole's own links, or the MPI that started the job (mpi)."""
    mpi_library: str | None = setting(
        None, values.text, "a path", unset="that of mpirun, or what the loader finds", engine=True
    )
    """The MPI library that the backend mpi uses, unless the process runs one already."""
    algorithm: str = setting("auto", values.text, "the name of an algorithm", engine=True)
    """One collective algorithm for everything, for tests and measurements; `auto` chooses the best one."""
    host_key: str = setting("", values.text, "any text", engine=True)
    """Workers with different keys never share memory; empty: found by trying."""
    arena_bytes: int = setting(0, values.count, "a number of bytes", unset="64 GiB", engine=True)
    """Address space of the memory that workers of a host share; 0 is the default."""
    staging_bytes: int = setting(0, values.count, "a number of bytes", unset="8 MiB", engine=True)
    """How much of it is lent to tensors in ordinary memory; 0 is the default."""
    elastic: bool = setting(False, values.switch, "0 or 1", "HOROVOD_ELASTIC")
    """Whether workers of this job come and go. Set by our launcher."""
    grace: float = setting(30.0, values.positive_seconds, "a number of seconds above 0")
    """Seconds that a worker of such a job takes at most to leave in good order after SIGTERM; then it ends."""
    roster_patience: float = setting(600.0, values.positive_seconds, "a number of seconds above 0")
    """Seconds for which a worker of such a job looks for its roster when that is lost. Meanwhile it trains on."""
    elastic_keep_gradients: bool = setting(True, values.switch, "0 or 1")
    """Whether a worker of such a job keeps its own gradients until the step counts, so that only collectives are done
    again when the world breaks. It costs the memory of the gradients; without it, the step is done again."""
    elastic_state_at_once: int = setting(8 << 20, values.count, "a number of bytes")
    """Up to this size the state goes to a newcomer while the others wait; what is larger, while they train."""
    failure_deadline: float | None = setting(
        None, values.positive_seconds, "a number of seconds above 0", unset="5; in elastic jobs 1", engine=True
    )
    """Seconds of silence after which a worker counts as lost."""
    spin_seconds: float = setting(0.0, float, "a number of seconds", engine=True)
    """How long a wait looks before it sleeps; 0 is the default of 20 microseconds, below 0 is not at all."""
    thread_affinity: tuple[int, ...] = setting(
        (), values.cores, "numbers of cores, separated by commas", "HOROVOD_THREAD_AFFINITY"
    )
    """Cores for the engine's threads, one for each local rank, such as 0,8; other workers' threads run on any core."""
    stall_warning_seconds: float = setting(
        60.0,
        values.seconds,
        "a number of seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        flag=Flag(
            "stall-warning",
            "warn when ranks wait so long for others (default: 60; 0: never)",
            metavar="S",
            type=float,
        ),
        engine=True,
    )
    """Seconds after which rank 0 warns that some ranks wait for others, and says which; 0 is never."""
    stall_shutdown_seconds: float = setting(
        0.0,
        values.seconds,
        "a number of seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        flag=Flag(
            "stall-shutdown",
            "fail when ranks wait so long for others (default: 0, never)",
            metavar="S",
            type=float,
        ),
        engine=True,
    )
    """Seconds of such waiting after which all requests fail on all ranks; 0 is never. May be below the warning's."""
    stall_check_disable: bool = setting(False, values.switch, "0 or 1", "HOROVOD_STALL_CHECK_DISABLE")
    """Neither warn of ranks that wait for others, nor end the world for it."""
    progress: float = setting(0.0, values.seconds, "a number of seconds")
    """Seconds between two reports to the launcher of how this worker gets on, for its status line; 0 is never."""
    timeline: str | None = setting(
        None,
        values.text,
        "a path, or DYNAMIC",
        "HOROVOD_TIMELINE",
        flag=Flag(
            "timeline", "record what all ranks do, for ui.perfetto.dev; NAME.pftrace: in its own format", metavar="FILE"
        ),
    )
    """File into which rank 0 writes what all ranks do, from `init()` on; DYNAMIC: once `start_timeline` says so. It is
    Chrome's JSON or, if its name ends with `.pftrace`, Perfetto's own format."""
    timeline_mark_cycles: bool = setting(
        False,
        values.switch,
        "0 or 1",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        flag=Flag(
            "timeline-mark-cycles",
            "also mark every round of agreement in it",
            needs="timeline",
            alone="marks nothing without a timeline",
        ),
    )
    """Also mark in it when a round of agreement has been heard of."""
    timeline_limit_mb: int = setting(256, values.count, "a number of megabytes")
    """Size at which that file is full, and recording ends."""
    checkpoint_seconds: float = setting(
        600.0,
        values.positive_seconds,
        "a number of seconds above 0",
        flag=Flag("checkpoint-every", "seconds between two checkpoints (default: 600)", metavar="S", type=float),
    )
    """Seconds between two checkpoints that are written there."""
    checkpoint_dir: str | None = setting(
        None,
        values.text,
        "a path",
        flag=Flag(
            "checkpoint-dir",
            "where elastic training writes checkpoints; all hosts must share it",
            metavar="DIR",
        ),
    )
    """Directory into which elastic training writes checkpoints; without it, none are written."""
    resume: str = setting(
        "never",
        values.resume,
        "one of auto, never",
        flag=Flag(
            "resume",
            "auto: begin with the newest good checkpoint (default: never)",
            choices=values.RESUMES,
        ),
    )
    """Whether elastic training begins with the newest good checkpoint of that directory, if there is any (auto)."""
    log_level: int = setting(
        0,
        values.log_level,
        f"one of {', '.join(values.LOG_LEVELS)}",
        "HOROVOD_LOG_LEVEL",
        flag=Flag(
            "log-level",
            "how much the workers' core tells",
            choices=("debug", "info", "warning", "error", "off"),
        ),
        unset="warning",
        engine=True,
    )
    """What the native core writes to standard error; warning by default."""
    log_format: str = setting(
        "text",
        values.log_format,
        f"one of {', '.join(values.LOG_FORMATS)}",
        flag=Flag(
            "log-format",
            "how workers write what farandole itself has to say (default: text)",
            choices=values.LOG_FORMATS,
        ),
    )
    """How a worker's Python side writes its own lines on standard error: as text, or each as a JSON object."""
    metrics: str | None = setting(
        None,
        values.metrics_address,
        "a port, or HOST:PORT",
        flag=Flag(
            "metrics",
            f"serve metrics for Prometheus (alone: port {DEFAULT_PORT} of the loopback interface)",
            metavar="[HOST:]PORT",
            value_alone=str(DEFAULT_PORT),
        ),
    )
    """Where metrics are served for Prometheus: `PORT`, on the loopback interface, or `HOST:PORT`; 0 is any port that is
    free. `farandole run` serves those of the job there, and says where each worker serves its own. Of workers that
    something else has started, each takes the port that is as much higher as its local rank says."""
    metrics_token: str = setting("", values.text, "any text", shown=False)
    """What a reader of the metrics must send (`Authorization: Bearer ...`). Needed where a host is given that is not
    the loopback interface."""
    tf1: bool = setting(
        False,
        values.switch,
        "0 or 1",
        flag=Flag("tf1", "the script is for TensorFlow 1: its `import tensorflow` gives tensorflow.compat.v1"),
    )
    """The user's modules are for TensorFlow 1: their `import tensorflow` gives `tensorflow.compat.v1`."""
    library: str | None = setting(None, values.text, "the path of libfarandole.so")
    """Where the native library is; not set: the one that came with this package."""

    @property
    def silence_seconds(self) -> float:
        """How long a worker of this job may say nothing before it counts as lost.

        Where the others go on without it, a mistake costs little, and so the time is short. Where the whole job ends
        with it, healthy processes get the time for which they are held up now and then: while a large
        one forks, while its machine is moved to another host, while the disk with its code does not answer.
        """
        if self.failure_deadline is not None:
            return self.failure_deadline
        return ELASTIC_SILENCE_SECONDS if self.elastic else SILENCE_SECONDS

    def for_engine(self) -> dict[str, str]:
        """Return what the native engine is given: texts by name. What is not set has its default there."""
        given = {name: getattr(self, name) for name, row in SETTINGS.items() if row.engine}
        given["failure_deadline"] = self.silence_seconds
        if self.stall_check_disable:
            given |= {"stall_warning_seconds": 0.0, "stall_shutdown_seconds": 0.0}
        return {name: as_text(value) for name, value in given.items() if value is not None}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `environment` (by default this process's), at the moment of the call.

        An empty variable counts as not set.

        Raises:
            SettingError: a value cannot be used; the message names the variable and what it should be.

        Example:
            >>> Settings.from_environment({"HOROVOD_FUSION_THRESHOLD": "0"}).fusion_threshold
            0
        """
        environment = os.environ if environment is None else environment
        found = {}
        for row in SETTINGS.values():
            for variable in row.variables:
                if environment.get(variable):
                    found[row.name] = _parse(row, variable, environment[variable])
                    break
        return cls(**found)


SETTINGS = {declared.name: row_of(declared) for declared in fields(Settings)}
"""Every row, by the setting's name, in the table's order."""
FLAGS = {row.flag.name: row for row in SETTINGS.values() if row.flag is not None}
"""The rows that an option of `farandole run` sets, by the option's long name."""


def _parse(row: Setting, variable: str, text: str) -> Any:
    try:
        return row.parse(text)
    except (ValueError, KeyError):
        # The secret is the one value that must not get into a log.
        shown = "a value" if row.name == "secret" else repr(text)
        default = "" if row.default in (None, "", b"") else f" (default: {row.default})"
        raise SettingError(
            f"{variable} is {shown}, but should be {row.expects}{default}. Correct it or unset it."
        ) from None


@cache
def descriptions() -> dict[str, str]:
    """Return the docstring under each field of `Settings`; it stands nowhere else."""
    (settings,) = ast.parse(textwrap.dedent(inspect.getsource(Settings))).body
    assert isinstance(settings, ast.ClassDef)
    found = {}
    for field, below in zip(settings.body, settings.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found
