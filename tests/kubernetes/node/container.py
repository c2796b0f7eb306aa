"""One container of a pod: a program in its own namespaces, on a layer over the machine's files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts.host import needed_inside
from tests.hosts.namespaces import NSENTER
from tests.kubernetes.children import die_with_parent

from farandole.control.agent.oom import memory_cgroup

_LOOK_SECONDS = 0.005
_KILLED = b"unshare: sigprocmask unblock failed: Invalid argument\n"
# Each container has its own, empty but for Python and this checkout, if these are in one of them.
_PRIVATE_FOLDERS = ("/tmp", "/run", "/var/tmp")
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 10**3, "M": 10**6, "G": 10**9, "": 1}


@dataclass
class Security:
    """As whom a container runs, and with which rights."""

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    drops_all: bool = False
    no_new_privileges: bool = False
    read_only_root: bool = False

    @classmethod
    def of(cls, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Security:
        """Read it from the two security contexts.

        Raises:
            ValueError: root is asked for, or not excluded, where it must not be.
        """
        outer, inner = pod.get("securityContext") or {}, container.get("securityContext") or {}
        both = {**outer, **inner}
        user = both.get("runAsUser")
        if both.get("runAsNonRoot") and not user:
            raise ValueError("container has runAsNonRoot and image will run as root")
        groups = [*outer.get("supplementalGroups", []), *([outer["fsGroup"]] if "fsGroup" in outer else [])]
        return cls(
            user,
            both.get("runAsGroup", 0 if user is None else user),
            tuple(groups),
            "ALL" in inner.get("capabilities", {}).get("drop", []),
            inner.get("allowPrivilegeEscalation") is False,
            bool(inner.get("readOnlyRootFilesystem")),
        )

    def prefix(self) -> list[str]:
        """Return the words before a command that make it so."""
        words = []
        if self.user is not None:
            words += [f"--reuid={self.user}", f"--regid={self.group}"]
            words += [f"--groups={','.join(map(str, self.groups))}"] if self.groups else ["--clear-groups"]
        if self.drops_all:
            words += ["--inh-caps=-all", "--bounding-set=-all"]
        if self.no_new_privileges:
            words += ["--no-new-privs"]
        # Whose credentials change forgets that it is to end with its parent, and so with the node.
        return ["setpriv", "--pdeathsig", "keep", *words, "--"] if words else []


@dataclass
class ContainerState:
    """What is known of a container, for its status.

    Times are seconds since 1970.
    """

    waiting: str = "ContainerCreating"
    message: str = ""
    started: float = 0.0
    finished: float = 0.0
    code: int | None = None
    reason: str = ""
    restarts: int = 0
    ready: bool = False
    running: bool = False
    before: dict[str, Any] | None = None
    """How it ended the last time."""


@dataclass
class Container:
    """A container, which may be started again and again.

    Attributes:
        spec: as the pod has it.
        log: where it writes.
        state: what is known of it.
    """

    spec: dict[str, Any]
    folder: Path
    sandbox: int
    """A process in the pod's namespaces."""
    security: Security
    state: ContainerState = field(default_factory=ContainerState)
    environment: dict[str, str] = field(default_factory=dict)
    _process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        """Its name in the pod."""
        return str(self.spec["name"])

    @property
    def log(self) -> Path:
        """Where it writes."""
        return self.folder / f"{self.name}.log"

    async def run(self, binds: Sequence[tuple[str, str, bool]], hostname: str) -> int:
        """Run it once, to its end, and return its exit code.

        Args:
            binds: what is mounted: from where, to where, whether read-only.
            hostname: of the pod.
        """
        words = [
            _expand(word, self.environment) for word in (*self.spec.get("command", []), *self.spec.get("args", []))
        ]
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.before"))  # Each start has a log of its own.
        begun = self.folder / f"begun-{self.name}"
        begun.unlink(missing_ok=True)
        root = self.folder / f"root-{self.name}"
        root.mkdir(exist_ok=True)
        script = root_script(root, begun, binds, self.security.read_only_root)
        inner = 'cd "$0" 2>/dev/null || { mkdir -p "$0" && cd "$0"; }; exec "$@"'
        directory = self.spec.get("workingDir") or "/"
        command = [*self.security.prefix(), *(words or ["sleep", "infinity"])]
        namespaces = [f"--{kind}=/proc/{self.sandbox}/ns/{kind}" for kind in ("net", "uts", "ipc")]
        enter = [
            NSENTER,
            *namespaces,
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            script,
            "sh",
        ]
        with self._cgroup() as cgroup, self.log.open("ab") as log:

            def become() -> None:
                die_with_parent()
                if cgroup is not None:
                    (cgroup / "cgroup.procs").write_text(str(os.getpid()))

            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(
                    *enter, hostname, "sh", "-c", inner, directory, *command,
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=self.environment,
                    start_new_session=True, preexec_fn=become,
                )
            )  # fmt: skip
            try:
                self._process = await asyncio.shield(starting)
                code = await self._ended(begun)
            finally:
                self._process = await starting
                if self._process.returncode is None:
                    self._kill_all()  # Nobody waits for it any more: its pod is deleted.
                    await self._process.wait()
            ended = 128 + signal.SIGKILL if self._take_away_killed() else 128 - code if code < 0 else code
            out_of_memory = cgroup is not None and _was_out_of_memory(cgroup)
        self._note_end(ended, "OOMKilled" if out_of_memory else "Completed" if ended == 0 else "Error")
        return ended

    async def _ended(self, begun: Path) -> int:
        """Return the exit code of the process, when it has one; the state says meanwhile that the program runs."""
        assert self._process is not None
        ending = asyncio.ensure_future(self._process.wait())
        while not begun.exists() and not ending.done():
            await asyncio.sleep(_LOOK_SECONDS)
        self.state.running, self.state.started, self.state.waiting = True, time.time(), ""
        self.state.code, self.state.message = None, ""
        return await ending

    def kill(self, signum: int) -> None:
        """Send its first process a signal. No-op when it does not run."""
        with contextlib.suppress(ProcessLookupError):
            if (first := self.first_process()) is not None:
                os.kill(first, signum)
            elif self._process is not None and self._process.returncode is None and signum == signal.SIGKILL:
                self._kill_all()

    def _kill_all(self) -> None:
        """Kill what is starting it, and what that has started: unshare's child ends with unshare only a while after."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def first_process(self) -> int | None:
        """Return the id of process 1 of the container, as this machine has it; None when it does not run."""
        if self._process is None or self._process.returncode is not None:
            return None
        pid = self._process.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return int(children[0]) if children else None
        return None

    def enter(self, command: Sequence[str]) -> list[str] | None:
        """Return the command that runs another one inside; None when it does not run."""
        first = self.first_process()
        if first is None:
            return None
        return [NSENTER, "-t", str(first), "-m", "-u", "-i", "-n", "-p", "-r", "-w", *self.security.prefix(), *command]

    def _take_away_killed(self) -> bool:
        """Return whether the program was ended by SIGKILL, and take what unshare says of that out of the log.

        unshare wants to end as its child did, and ends with code 1 instead: no program can prepare for SIGKILL.
        """
        text = self.log.read_bytes()
        if not text.endswith(_KILLED):
            return False
        with self.log.open("r+b") as log:
            log.truncate(len(text) - len(_KILLED))
        return True

    def _note_end(self, code: int, reason: str) -> None:
        state = self.state
        state.running = state.ready = False
        state.code, state.reason, state.finished = code, reason, time.time()

    @contextlib.contextmanager
    def _cgroup(self) -> Any:
        limit = (self.spec.get("resources") or {}).get("limits", {}).get("memory")
        here = memory_cgroup(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        if limit is None or here is None:
            yield None
            return
        folder = Path(here.folder, f"farandole-{self.folder.name}-{self.name}-{os.getpid()}")
        try:
            folder.mkdir(exist_ok=True)
            (folder / ("memory.max" if here.version == 2 else "memory.limit_in_bytes")).write_text(
                str(read_bytes(limit))
            )
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            yield None  # Without such rights there are no limits.
            return
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()


def read_bytes(quantity: object) -> int:
    """Read a quantity of memory, such as `64Mi`."""
    match = re.fullmatch(r"([0-9.]+)(Ki|Mi|Gi|k|M|G|)", str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a valid quantity of memory")
    return int(float(match[1]) * _UNITS[match[2]])


def _was_out_of_memory(cgroup: Path) -> bool:
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in (cgroup / name).read_text().splitlines():
                if line.startswith("oom_kill ") and line != "oom_kill 0":
                    return True
    return False


def _expand(word: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda match: environment.get(match[1], match[0]), word)


def root_script(root: Path, begun: Path, binds: Sequence[tuple[str, str, bool]], read_only: bool) -> str:
    """Return the shell script that makes the container's files; its arguments are a host name and the program.

    It makes the file `begun` when nothing but the program is left to be started. All else that it makes is in what it
    mounts on the folder `root`.

    What is mounted is resolved inside: a link such as /var/run must not lead to the machine's own folder. A mount point
    that is missing is made on the container's layer.
    """
    layer = shlex.quote(str(root))
    lines = [
        "set -e",
        "mount --make-rprivate /",
        f"mount -t tmpfs layer {layer}; cd {layer}; mkdir upper work root",
        f"mount -t overlay root -o lowerdir=/,upperdir={layer}/upper,workdir={layer}/work root",
        f"R={layer}/root",
        'mount -t proc proc "$R/proc"; mount --rbind /dev "$R/dev"; mount --rbind /sys "$R/sys"',
        'mount -t tmpfs -o size=64m shm "$R/dev/shm"',
        f'for f in {" ".join(_PRIVATE_FOLDERS)}; do mount -t tmpfs -o mode=1777 private "$R$f"; done',
        # A program of the machine may lie in root's home; any user of the container finds it.
        'chmod go+rx "$R/root"',
    ]
    # Last, because a volume of the pod may be mounted on a private folder.
    kept = [(path, path, True) for path in needed_inside((*_PRIVATE_FOLDERS, "/dev/shm"))]
    for source, target, locked in (*binds, *kept):
        here, there = shlex.quote(source), shlex.quote(target)
        lines.append(f'T="$R$(chroot "$R" realpath -m {there})"')
        lines.append(
            f'if [ -d {here} ]; then mkdir -p "$T"; else mkdir -p "$(dirname "$T")"; [ -e "$T" ] || : > "$T"; fi'
        )
        lines.append(f'mount --bind {here} "$T"')
        if locked:
            lines.append('mount -o remount,bind,ro "$T"')
    if read_only:
        lines.append('mount -o remount,ro "$R"')
    lines.append(f'hostname "$1"; shift; : > {shlex.quote(str(begun))}; exec chroot "$R" "$@"')
    return "\n".join(lines)
