"""The facts about one host, as plain data that travels as JSON.

`None` and empty values mean that there is none, or that the fact could not be determined, as listed in `Facts.unknown`.
"""

from __future__ import annotations

import msgspec


class System(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as a whole."""

    hostname: str = ""
    boot: str | None = None
    """The kernel's boot id: two hosts with the same one are the same machine."""
    kernel: str = ""
    distribution: str | None = None
    architecture: str = ""


class NativeBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the native library's table of backends, which run collectives."""

    name: str
    absent: str = ""
    """Why this build does not include it; "" if it does."""
    unusable: str = ""
    """Why it cannot be used on this host; "" if it can."""
    found: str = ""
    """The resource that it would use here, such as a library; "" if it needs none."""
    memory: tuple[str, ...] = ()
    """The kinds of memory that it accepts: `host`, `device`."""


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """farandole and its Python interpreter."""

    version: str = ""
    folder: str = ""
    library: str | None = None
    """Path of the native library, if a process could load it."""
    library_version: str | None = None
    library_error: str | None = None
    backends: tuple[NativeBackend, ...] = ()
    """The backends of the native library, in order of preference."""
    python: str = ""
    executable: str = ""
    prefix: str = ""
    """The virtual environment, or the installation directory of Python."""


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """An installed framework."""

    name: str
    version: str | None = None
    """Its version; None: it can be imported, but was not installed as a package."""
    import_seconds: float | None = None
    """Seconds that its import took; None if it was not imported, or cannot be."""
    import_error: str | None = None
    cuda: str | None = None
    """Version of CUDA that torch was built for, such as `12.8`; None: another framework, or none."""
    detail: str | None = None
    """Its own description when it is imported, such as whether it finds GPUs."""


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """Cores and memory that are close to each other."""

    number: int
    cores: str
    """The cores in the kernel's form, such as `0-7,16-23`."""
    memory_bytes: int | None = None


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """Cores, and the share of them that this process may use."""

    model: str | None = None
    cores: int = 0
    """Number of cores that are online."""
    allowed: int = 0
    """Number of cores that this process may run on."""
    quota: float | None = None
    """CPU time that the cgroup allows, in cores; None: no limit."""
    numa: tuple[NumaNode, ...] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in bytes, shared memory and huge pages."""

    total: int | None = None
    available: int | None = None
    limit: int | None = None
    """The cgroup's limit; None: no limit."""
    used: int | None = None
    """Bytes of that limit that are in use."""
    shm_total: int | None = None
    """Size of /dev/shm."""
    shm_free: int | None = None
    huge_pages: str | None = None
    """The kernel's setting of transparent huge pages for ordinary memory, such as `madvise`."""
    shared_huge_pages: str | None = None
    """The same for memfds, which contain farandole's shared-memory arena."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One of the limits that `ulimit` shows; None: no limit."""

    soft: int | None = None
    hard: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of one process or one user."""

    open_files: Limit = Limit()
    locked_bytes: Limit = Limit()
    processes: Limit = Limit()
    file_bytes: Limit = Limit()
    """The size of a file."""
    address_bytes: Limit = Limit()
    """The address space of a process."""
    cgroup_processes: int | None = None


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel features that farandole needs, and restrictions on them."""

    trials: dict[str, str] = {}
    """For each tried feature: "" if it works, otherwise the kernel's error."""
    ptrace_scope: int | None = None
    seccomp: int | None = None
    """0: none, 1: strict, 2: filtered."""
    user_namespaces: int | None = None
    """The limit on their number."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """One address of an interface."""

    address: str
    prefix: int


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface."""

    name: str
    kind: str
    """`loopback`, `physical`, or the kind of a virtual one."""
    state: str
    """`up` or `down`, according to the kernel."""
    carrier: bool | None = None
    speed: int | None = None
    """Megabits per second; None if the driver does not know."""
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
    """`InfiniBand`, or `Ethernet` for RoCE."""
    interfaces: tuple[str, ...] = ()
    is_open: bool = False
    """Whether the file in /dev/infiniband through which programs use it exists."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA GPU."""

    index: int
    name: str
    memory_mib: int | None = None
    bus: str | None = None
    partitioned: bool = False
    """Whether it is in MIG mode."""
    numa: int | None = None
    """The NUMA node that it is attached to."""


class GpuLink(msgspec.Struct, frozen=True, kw_only=True):
    """The connection of two GPUs, in nvidia-smi's terms."""

    first: int
    second: int
    kind: str
    """`NV18` (18 NVLinks), or the most distant part of the PCIe path: `PIX`, `PXB`, `PHB`, `NODE`, `SYS`."""
    p2p: str = ""
    """Whether each can access the other's memory: `OK`, or the driver's reason, such as `CNS`; "" if unknown."""


class AdapterLink(msgspec.Struct, frozen=True, kw_only=True):
    """The connection of a GPU and an RDMA adapter, in the same terms as that of two GPUs."""

    gpu: int
    adapter: str
    kind: str


class CudaDriver(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from libcuda, the driver's library, queried in a separate process."""

    version: int | None = None
    """The newest CUDA that it supports: 12040 is CUDA 12.4."""
    devices: tuple[str, ...] = ()
    """Names of the devices that a process with this environment sees."""
    uuids: tuple[str, ...] = ()
    """Their UUIDs, as hexadecimal digits."""
    error: str = ""
    """Why it cannot be loaded or initialized; "" if it can."""


class Nccl(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA's library for collectives, as found by a process that has not imported a framework."""

    version: int | None = None
    """23007 is NCCL 2.30.7; None: it was not found."""
    path: str = ""
    error: str = ""
    """Why it cannot be loaded; "" if it can."""


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA GPUs, and the parts of their driver that are present."""

    devices: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    nvlinks: dict[int, int] = {}
    """Number of active NVLinks, by index of the GPU."""
    adapters: tuple[AdapterLink, ...] = ()
    on_bus: int = 0
    """Number of NVIDIA GPUs on the PCI bus, whether their driver is loaded or not."""
    switches: int = 0
    """Number of NVSwitches on the PCI bus."""
    driver: str | None = None
    is_open_driver: bool = False
    """Whether the driver is that of NVIDIA's open kernel modules."""
    has_peer_memory: bool = False
    """Whether the kernel module nvidia_peermem, one of the two ways to use GPUDirect RDMA, is loaded."""
    has_verbs: bool | None = None
    """Whether libibverbs can be loaded, which NCCL needs for RDMA; None if unknown."""
    cuda: CudaDriver | None = None
    """None: not queried, because there was no sign of a driver."""
    nccl: Nccl | None = None
    """None: not looked for, because there was no sign of a driver."""
    nodes: int = 0
    """Number of files /dev/nvidia0, /dev/nvidia1 ..."""
    tool: bool = False
    """Whether nvidia-smi is installed."""
    visible: str | None = None
    """The value of CUDA_VISIBLE_DEVICES."""
    other: tuple[str, ...] = ()
    """GPUs of other vendors, such as /dev/kfd."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The container and the batch job that this process runs in."""

    container: str | None = None
    """docker, podman, kubernetes, apptainer, or just `container`."""
    batch: str | None = None
    """slurm, lsf or pbs, if this process belongs to one of its jobs."""
    batch_job: dict[str, str] = {}
    """The batch system's variables that describe the job."""
    batch_tools: tuple[str, ...] = ()
    """Commands of batch systems that are installed, such as srun."""
    variables: dict[str, str] = {}
    """The relevant environment variables; possible secrets are `***`."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program that starts jobs."""

    name: str
    path: str
    version: str | None = None


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """The clocks of the host."""

    source: str | None = None
    synchronised: bool | None = None
    error_seconds: float | None = None
    """The kernel's estimate of the error of the time of day, in seconds."""
    now: float = 0.0
    """The time of day of the inspection, in seconds since 1970."""
    ahead: float | None = None
    """Minimum number of seconds by which the clock is ahead of that of the asking host (negative: behind); 0 if no
        difference is visible; None if they were not compared."""


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """The directory in which farandole caches files."""

    folder: str = ""
    free: int | None = None
    writable: bool | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about one host."""

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
    """By file, program or part: why it could not be read."""
