"""The table of all settings, and the only reader of the environment on a worker.

Every setting is one field of `Settings` with its row: default, parser, valid texts, Horovod's variable, the flag of
`farandole run`, and whether the native engine has such an option. The field's name gives the variable
(`fusion_threshold` is read from `FARANDOLE_FUSION_THRESHOLD`); the docstring below it is its description everywhere.
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

from farandole.base.metrics.address import DEFAULT_PORT
from farandole.base.settings import values
from farandole.base.settings.declaration import Flag, Setting, as_text, row_of, setting
from farandole.errors import SettingError

# Seconds of silence after which a worker counts as lost, in elastic jobs and in jobs of fixed size.
ELASTIC_SILENCE_SECONDS = 1.0
SILENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    """The settings of a worker: a table with a field for each row. `Settings()` has all defaults."""

    roster: str | None = setting(None, values.roster, "host:port, with an IPv6 host in brackets; several with commas")
    """Address of the roster, the service by which workers find each other. If several are given, separated by commas,
    the first that answers is used. Not set: a world of one worker without a network, unless another launcher, such as
    mpirun, has started this worker."""
    secret: bytes = setting(b"", values.secret, "hexadecimal digits", shown=False)
    """The job's secret, in hexadecimal. Every connection is authenticated with it."""
    job: str = setting("", values.text, "the id that farandole run gave the job")
    """The job's id. Set by farandole's launcher, which then also runs the roster. If it is not set, but a roster and a
    size are, rank 0 runs the roster."""
    job_key: str = setting("", values.text, "any text")
    """A text that distinguishes this job from others of the same user, for jobs whose launcher provides none."""
    rank: int = setting(0, values.count, "a rank")
    """The number by which the roster knows this worker."""
    listen: str = setting("", values.addresses, "IP addresses in numbers, separated by commas", engine=True)
    """Addresses on which workers of other hosts can reach this worker. Empty: only workers of this host or, if another
    launcher has started workers on several hosts, all addresses of `network`."""
    network: tuple[str, ...] = setting((), values.names, "interfaces, addresses or networks, separated by commas")
    """Which of this machine's addresses a worker offers if farandole's launcher has not started it. Empty: all."""
    start_timeout: float = setting(
        30.0,
        values.positive_seconds,
        "a number of seconds above 0",
        "HOROVOD_START_TIMEOUT",
        flag=Flag(
            "start-timeout",
            "seconds that workers wait in init() for the others, from the most recent call (default: "
            "FARANDOLE_START_TIMEOUT, or 30)",
            metavar="S",
            type=float,
            group="starting",
        ),
        engine=True,
    )
    """Seconds that workers wait in `init()` for the others, counted from the most recent call of `init()`. Before
    the first call, there is no time limit."""
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
    """Largest size of a bucket of fused tensors, in bytes; 0: no fusion. Rank 0's value is used on all ranks."""
    chunk_bytes: int | None = setting(None, values.count, "a number of bytes", unset="1 MiB", engine=True)
    """Bytes that the workers of a host together send through shared memory at a time; of more than four workers, each
    sends a quarter. For this and the next three settings, rank 0's value is used on all ranks, and a value that is set
    is not tuned."""
    small_bytes: int | None = setting(None, values.count, "a number of bytes", unset="16 KiB", engine=True)
    """Up to this size, a worker reduces the whole tensor instead of its slice; with more than 64 workers on a host (128
    in blocking calls that repeat), the size is correspondingly smaller."""
    ring_bytes: int | None = setting(None, values.count, "a number of bytes", unset="64 KiB", engine=True)
    """Above this size, hosts minimize the bytes that they send instead of the number of messages."""
    link_chunk_bytes: int | None = setting(None, values.count, "a number of bytes", unset="256 KiB", engine=True)
    """Size of the pieces in which a message between two hosts is pipelined."""
    autotune: bool = setting(
        False,
        values.switch,
        "0 or 1",
        "HOROVOD_AUTOTUNE",
        flag=Flag("autotune", "find the fastest settings while training, and keep them"),
        engine=True,
    )
    """Search for the fastest of the values above during training, and keep them. Rank 0's setting is used on all
    ranks."""
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
        3, values.small_count, "a number of samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", engine=True
    )
    """Samples at the beginning that are not counted."""
    autotune_steps_per_sample: int = setting(
        10, values.positive_count, "a number of steps above 0", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", engine=True
    )
    """Steps in one sample."""
    autotune_max_samples: int = setting(
        40,
        values.positive_count,
        "a number of samples above 0",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        engine=True,
    )
    """Largest number of samples that the search takes."""
    tuning: str | None = setting(
        None,
        values.text,
        "a path",
        flag=Flag("tuning", "use what autotuning found; with --autotune, keep it there", metavar="FILE"),
    )
    """File with the result of autotuning. It is used as it is or, with autotuning, verified and updated. Not set: none
    or, with autotuning, a file for this set of hosts in the user's cache."""
    transport: str = setting(
        "auto",
        values.transport,
        f"one of {', '.join(values.TRANSPORTS)}",
        flag=Flag("transport", "how workers exchange tensors (default: auto)", choices=values.TRANSPORTS),
        engine=True,
    )
    """How workers of one host are connected. `auto`: by shared memory if that works; other values: only in this way."""
    backend: str = setting(
        "native",
        values.backend,
        f"one of {', '.join(values.BACKENDS)}",
        "HOROVOD_CPU_OPERATIONS",
        flag=Flag("backend", "what carries tensors between hosts (default: native)", choices=values.BACKENDS),
        engine=True,
    )
    """The transport between hosts: farandole's own connections (`native`), or the MPI that started the job
    (`mpi`)."""
    mpi_library: str | None = setting(
        None, values.text, "a path", unset="that of mpirun, or what the loader finds", engine=True
    )
    """The MPI library that the backend `mpi` uses, unless the process has already loaded one."""
    gpu: str = setting("auto", values.gpu_mode, f"one of {', '.join(values.GPU_MODES)}", engine=True)
    """How tensors of GPUs are reduced: `auto` by NCCL as soon as the ranks have formed a communicator, and through host
    memory until then, or where that is impossible; `nccl` always by NCCL, or the job fails with the reason; `staged`
    always through host memory."""
    nccl_library: str | None = setting(
        None, values.text, "a path", unset="the framework's, that of the wheel, or what the loader finds", engine=True
    )
    """The `libnccl.so.2` that is used for tensors of GPUs."""
    algorithm: str = setting("auto", values.text, "the name of an algorithm", engine=True)
    """Use one algorithm for all collectives, for tests and measurements. `auto` chooses the best one."""
    host_key: str = setting("", values.text, "any text", engine=True)
    """Workers with different keys never share memory. Others do if they are in one network namespace of one machine."""
    arena_bytes: int = setting(
        0, values.arena_size, f"0 or a number of bytes, at least {values.LEAST_ARENA}", unset="64 GiB", engine=True
    )
    """Address space of the memory that workers of a host share; 0 is the default."""
    staging_bytes: int = setting(0, values.count, "a number of bytes", unset="8 MiB", engine=True)
    """Part of this memory that is used to copy tensors from ordinary memory; 0 is the default."""
    elastic: bool = setting(False, values.switch, "0 or 1", "HOROVOD_ELASTIC", engine=True)
    """Whether the job is elastic: workers may join and leave. Set by farandole's launcher."""
    grace: float = setting(30.0, values.positive_seconds, "a number of seconds above 0")
    """Elastic jobs: seconds that a worker has after SIGTERM to leave gracefully, before it ends."""
    roster_patience: float = setting(600.0, values.positive_seconds, "a number of seconds above 0")
    """Elastic jobs: seconds that a worker searches for its roster if it has lost it. It continues training
    meanwhile."""
    check_parameters: int = setting(1, values.count, "a number of steps")
    """When a distributed optimizer of PyTorch, TensorFlow or JAX, a `DistributedGradientTape`, or a Keras model in
    `fit` and `train_on_batch` compares the ranks' parameters, and warns if they differ: 1: at the beginning of the
    training; a larger number N: also every N steps; 0: never, for parameters that are meant to differ. In elastic jobs
    and in graphs of `tf.compat.v1` nothing is compared; in compiled steps of JAX only at the beginning."""
    elastic_keep_gradients: bool = setting(True, values.switch, "0 or 1")
    """Elastic jobs: whether a worker keeps its own gradients until the step counts, so that only collectives are
    repeated when the world breaks. This costs the memory of the gradients. Without it, the whole step is repeated."""
    elastic_state_at_once: int = setting(8 << 20, values.count, "a number of bytes")
    """Elastic jobs: state up to this size, in bytes, is sent to a newcomer while the others wait; larger state is sent
    while they train."""
    failure_deadline: float | None = setting(
        None, values.positive_seconds, "a number of seconds above 0", unset="5; in elastic jobs 1", engine=True
    )
    """Seconds of silence after which a worker counts as lost."""
    spin_seconds: float = setting(0.0, values.any_seconds, "a number of seconds", engine=True)
    """Seconds that a wait polls before it sleeps. 0 is the default of 20 microseconds; a negative value disables
    polling."""
    agreement_fanout: int | None = setting(
        None,
        values.small_count,
        "a number that is not negative",
        unset="16 in worlds of more than 8 hosts, otherwise 0",
        engine=True,
    )
    """Largest number of hosts to which each host passes on what is agreed, over a tree of hosts. 0: there is no tree,
    and rank 0 tells all workers itself. The same on all workers."""
    thread_affinity: tuple[int, ...] = setting(
        (), values.cores, "numbers of cores, separated by commas", "HOROVOD_THREAD_AFFINITY"
    )
    """Cores for the engine's threads, one for each local rank, such as 0,8. If there are more local ranks than cores in
    the list, their threads run on any core."""
    stall_warning_seconds: float = setting(
        60.0,
        values.seconds,
        "a number of seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        flag=Flag(
            "stall-warning",
            "seconds that ranks wait for others before a warning (default: 60; 0: never)",
            metavar="S",
            type=float,
        ),
        engine=True,
    )
    """Seconds after which rank 0 warns that some ranks wait for others, and names them; 0: never."""
    stall_shutdown_seconds: float = setting(
        0.0,
        values.seconds,
        "a number of seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        flag=Flag(
            "stall-shutdown",
            "seconds that ranks wait for others before they fail (default: 0, never)",
            metavar="S",
            type=float,
        ),
        engine=True,
    )
    """Seconds that ranks wait for others before all requests fail on all ranks; 0: never. May be less than for the
    warning."""
    stall_check_disable: bool = setting(False, values.switch, "0 or 1", "HOROVOD_STALL_CHECK_DISABLE")
    """Do not warn about ranks that wait for others, and do not end the world because of them."""
    progress: float = setting(0.0, values.seconds, "a number of seconds")
    """Seconds between two progress reports of this worker to the launcher; 0: never."""
    timeline: str | None = setting(
        None,
        values.text,
        "a path, or DYNAMIC",
        "HOROVOD_TIMELINE",
        flag=Flag(
            "timeline", "record what all ranks do, for ui.perfetto.dev; NAME.pftrace: in its own format", metavar="FILE"
        ),
    )
    """File into which rank 0 writes the timeline of all ranks, from `init()` on. `DYNAMIC`: only after
    `start_timeline`. The format is Chrome's JSON or, if the name ends with `.pftrace`, Perfetto's own."""
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
    """Also mark each round of agreement in the timeline."""
    timeline_limit_mb: int = setting(256, values.count, "a number of megabytes")
    """Largest size of the timeline file. Recording ends when it is reached."""
    checkpoint_seconds: float = setting(
        600.0,
        values.positive_seconds,
        "a number of seconds above 0",
        flag=Flag("checkpoint-every", "seconds between two checkpoints (default: 600)", metavar="S", type=float),
    )
    """Seconds between two checkpoints."""
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
    """Directory into which elastic training writes checkpoints. Not set: none are written."""
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
    """Whether elastic training resumes from the newest good checkpoint of the directory, if there is one (`auto`)."""
    log_level: int = setting(
        0,
        values.log_level,
        f"one of {', '.join(values.LOG_LEVELS)}",
        "HOROVOD_LOG_LEVEL",
        flag=Flag(
            "log-level",
            "verbosity of the workers' native core",
            choices=("debug", "info", "warning", "error", "off"),
        ),
        unset="warning",
        engine=True,
    )
    """How much the native core writes to standard error."""
    log_format: str = setting(
        "text",
        values.log_format,
        f"one of {', '.join(values.LOG_FORMATS)}",
        flag=Flag(
            "log-format",
            "format of farandole's own messages in workers (default: text)",
            choices=values.LOG_FORMATS,
        ),
    )
    """Format of the lines that farandole's Python code in a worker writes to standard error: `text`, or `json` for one
    JSON object a line."""
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
    """Where metrics are served for Prometheus: `PORT` on the loopback interface, or `HOST:PORT`; port 0: any free port.
    `farandole run` serves the job's metrics there, and says where each worker serves its own. With other launchers,
    each worker adds its local rank to the port."""
    metrics_token: str = setting("", values.text, "any text", shown=False)
    """Token that a reader of the metrics must send (`Authorization: Bearer ...`). Required if a host other than the
    loopback interface is given."""
    tf1: bool = setting(
        False,
        values.switch,
        "0 or 1",
        flag=Flag("tf1", "the script is for TensorFlow 1: its `import tensorflow` gives tensorflow.compat.v1"),
    )
    """The user's modules are for TensorFlow 1: in them, `import tensorflow` gives `tensorflow.compat.v1`."""
    library: str | None = setting(None, values.text, "the path of libfarandole.so")
    """Path of the native library. Not set: the one of this package."""

    @property
    def silence_seconds(self) -> float:
        """Seconds of silence after which a worker of this job counts as lost.

        In an elastic job the others continue without it, so a mistake costs little, and the time is short. In a job of
        fixed size the whole job ends, so the time allows for the delays that healthy processes have now and then: while
        a large process forks, while its machine is moved to another host, while the disk with its code does not answer.
        """
        if self.failure_deadline is not None:
            return self.failure_deadline
        return ELASTIC_SILENCE_SECONDS if self.elastic else SILENCE_SECONDS

    def for_engine(self) -> dict[str, str]:
        """Return the options of the native engine as texts by name, without settings that are not set."""
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
            SettingError: a value is not valid; the message names the variable and describes valid values.

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
"""All rows by the setting's name, in the table's order."""
FLAGS = {row.flag.name: row for row in SETTINGS.values() if row.flag is not None}
"""The rows with an option of `farandole run`, by the option's long name."""


def _parse(row: Setting, variable: str, text: str) -> Any:
    try:
        return row.parse(text)
    except (ValueError, KeyError) as error:
        # The secret is the one value that must not get into a log.
        shown = "a value" if row.name == "secret" else repr(text)
        default = "" if row.default in (None, "", b"") else f" (default: {as_text(row.default)})"
        limit = f", {error}" if isinstance(error, values.TooLarge) else ""
        raise SettingError(
            f"{variable} is {shown}, but should be {row.expects}{limit}{default}. Correct it or unset it."
        ) from None


@cache
def descriptions() -> dict[str, str]:
    """Return the docstring below each field of `Settings`, by the field's name."""
    (settings,) = ast.parse(textwrap.dedent(inspect.getsource(Settings))).body
    assert isinstance(settings, ast.ClassDef)
    found = {}
    for field, below in zip(settings.body, settings.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found
