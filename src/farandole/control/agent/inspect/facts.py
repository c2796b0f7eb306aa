"""What there is to know about one host, as plain data that travels as JSON.

`None` and empty values mean that there is none of it, or that it could not be found out; `Facts.unknown` says which.
"""

from __future__ import annotations

import msgspec


class System(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as a whole."""

    hostname: str = ""
    boot: str | None = None
    """The kernel's name for the time since it started: two hosts with the same are the same machine."""
    kernel: str = ""
    distribution: str | None = None
    architecture: str = ""


class NativeBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the native library's table of backends: what can run collectives."""

    name: str
    absent: str = ""
    """Why this build lacks it; "" if it is there."""
    unusable: str = ""
    """Why it cannot be used on this host; "" if it can."""
    found: str = ""
    """What it would use here, such as a library; "" if it needs nothing."""
    memory: tuple[str, ...] = ()
    """The kinds of memory that it takes: `host`, `device`."""


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """farandole and the Python that runs it."""

    version: str = ""
    folder: str = ""
    library: str | None = None
    """Path of the native library, once a process could load it."""
    library_version: str | None = None
    library_error: str | None = None
    backends: tuple[NativeBackend, ...] = ()
    """Of the native library, in the order of preference."""
    python: str = ""
    executable: str = ""
    prefix: str = ""
    """The virtual environment, or where Python is installed."""


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """A framework that is installed."""

    name: str
    version: str | None = None
    """None: it can be imported from somewhere, but was not installed as a package."""
    import_seconds: float | None = None
    """None: nobody asked for it to be imported, or it cannot be."""
    import_error: str | None = None
    detail: str | None = None
    """What it says of itself when it is imported, such as whether it finds GPUs."""


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """Cores and memory that are close to each other."""

    number: int
    cores: str
    """As the kernel writes it, such as `0-7,16-23`."""
    memory_bytes: int | None = None


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """Cores, and how much of them this process may use."""

    model: str | None = None
    cores: int = 0
    """That are online."""
    allowed: int = 0
    """That this process may run on."""
    quota: float | None = None
    """Cores' worth of time that the cgroup allows; None: no limit."""
    numa: tuple[NumaNode, ...] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in bytes, shared memory and huge pages."""

    total: int | None = None
    available: int | None = None
    limit: int | None = None
    """Of the cgroup; None: no limit."""
    used: int | None = None
    """Of that limit."""
    shm_total: int | None = None
    """Size of /dev/shm."""
    shm_free: int | None = None
    huge_pages: str | None = None
    """How the kernel gives huge pages to ordinary memory, such as `madvise`."""
    shared_huge_pages: str | None = None
    """The same for a memfd, where the arena lives."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One of the limits that `ulimit` shows; None: no limit."""

    soft: int | None = None
    hard: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one process or one user may have."""

    open_files: Limit = Limit()
    locked_bytes: Limit = Limit()
    processes: Limit = Limit()
    cgroup_processes: int | None = None


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """What farandole asks of the kernel, and what may stand in the way."""

    trials: dict[str, str] = {}
    """By name of a trial: "" when it works, else what the kernel said."""
    ptrace_scope: int | None = None
    seccomp: int | None = None
    """0: none, 1: strict, 2: filtered."""
    user_namespaces: int | None = None
    """How many may be made."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """One address of an interface."""

    address: str
    prefix: int


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface."""

    name: str
    kind: str
    """`loopback`, `physical`, or what kind of virtual one it is."""
    state: str
    """`up` or `down`, as the kernel sees it."""
    carrier: bool | None = None
    speed: int | None = None
    """Megabits a second; None: the driver does not know."""
    mtu: int | None = None
    driver: str | None = None
    addresses: tuple[Address, ...] = ()


class RdmaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One port of an RDMA adapter."""

    name: str
    port: int
    state: str
    rate: str
    link_layer: str
    interfaces: tuple[str, ...] = ()


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA GPU."""

    index: int
    name: str
    memory_mib: int | None = None
    bus: str | None = None
    partitioned: bool = False
    """Whether it is in MIG mode."""


class GpuLink(msgspec.Struct, frozen=True, kw_only=True):
    """How two GPUs are connected, in nvidia-smi's words: `NV18`, `PIX`, `SYS` ..."""

    first: int
    second: int
    kind: str


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA GPUs, and what of their driver is there."""

    devices: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    nvlinks: dict[int, int] = {}
    """By index: active NVLinks."""
    driver: str | None = None
    nodes: int = 0
    """Files /dev/nvidia0, /dev/nvidia1 ..."""
    tool: bool = False
    """Whether there is nvidia-smi."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    other: tuple[str, ...] = ()
    """GPUs of other makers, such as /dev/kfd."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What this process runs in."""

    container: str | None = None
    """docker, podman, kubernetes, apptainer, or just `container`."""
    batch: str | None = None
    """slurm, lsf or pbs, when this process belongs to a job of it."""
    batch_job: dict[str, str] = {}
    """What the batch system says of the job."""
    batch_tools: tuple[str, ...] = ()
    """Commands of batch systems that are installed, such as srun."""
    variables: dict[str, str] = {}
    """Those that matter here; what may be a secret is `***`."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program that jobs are started with."""

    name: str
    path: str
    version: str | None = None


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks."""

    source: str | None = None
    synchronised: bool | None = None
    error_seconds: float | None = None
    """By how much the kernel thinks the time of day may be wrong."""
    now: float = 0.0
    """The time of day when all this was found out."""
    ahead: float | None = None
    """By how many seconds at least it is ahead of the asking host's clock, or behind when negative; 0: no difference
    can be seen; None: nobody has compared them."""


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Where farandole keeps what it found or was sent."""

    folder: str = ""
    free: int | None = None
    writable: bool | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    system: System = System()
    software: Software = Software()
    frameworks: tuple[Framework, ...] = ()
    processor: Processor = Processor()
    memory: Memory = Memory()
    limits: Limits = Limits()
    kernel: Kernel = Kernel()
    network: tuple[Interface, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    gpus: Gpus = Gpus()
    surroundings: Surroundings = Surroundings()
    programs: tuple[Program, ...] = ()
    clock: Clock = Clock()
    cache: Cache = Cache()
    unknown: dict[str, str] = {}
    """By file, program or part: why it could not be found out."""
