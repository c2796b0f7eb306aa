"""The inspection's view of a host: files below a root, programs with a time limit, and facts from the kernel.

Missing files and programs raise no errors. Missing values are None or empty, as are values that cannot be read, for
which `unknown` has the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

from farandole.base.wire.interfaces import every_address

PROGRAM_SECONDS = 3.0
# Enough to read what a program that has ended has written.
_LEAST_SECONDS = 0.1


class Programs:
    """Small programs that run concurrently.

    Args:
        unknown: receives the reasons why programs gave no answer.
    """

    def __init__(self, unknown: dict[str, str]) -> None:
        self._unknown = unknown
        self._running: dict[tuple[str, ...], subprocess.Popen[str]] = {}
        self._started: dict[tuple[str, ...], float] = {}
        self._answers: dict[tuple[str, ...], str | None] = {}

    def path(self, name: str) -> str | None:
        """Return the path of a program, as a shell would find it; None if it is not installed."""
        return shutil.which(name)

    def start(self, *words: str) -> None:
        """Start a program whose output will be needed; no-op if it is not installed."""
        if words in self._running or self.path(words[0]) is None:
            return
        self._started[words] = time.monotonic()
        try:
            self._running[words] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._unknown[_short(words)] = str(error)

    def answer(self, *words: str, seconds: float = PROGRAM_SECONDS) -> str | None:
        """Return the output of a program; None if it is not installed, fails, or takes too long.

        The time counts from its start: several programs that hang, as with a broken driver, only cost one time limit.
        """
        self.start(*words)
        process = self._running.pop(words, None)
        if process is not None:
            self._answers[words] = self._wait(words, process, seconds)
        return self._answers.get(words)

    def _wait(self, words: tuple[str, ...], process: subprocess.Popen[str], seconds: float) -> str | None:
        try:
            passed = time.monotonic() - self._started[words]
            told, _ = process.communicate(timeout=max(seconds - passed, _LEAST_SECONDS))
        except subprocess.TimeoutExpired:
            self._unknown[_short(words)] = f"no answer within {seconds:g} s"
            _give_up(process)
            return None
        if process.returncode != 0:
            lines = told.strip().splitlines()
            self._unknown[_short(words)] = lines[-1] if lines else f"exit code {process.returncode}"
            return None
        return told


def _short(words: tuple[str, ...]) -> str:
    """Return a command line up to its first option, such as `nvidia-smi topo`."""
    options = [number for number, word in enumerate(words) if word.startswith("-")]
    return " ".join([Path(words[0]).name, *words[1 : min(options, default=len(words))]])


def _give_up(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + 0.5
    # A program that hangs in a driver cannot even be killed; it is not waited for.
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.returncode = process.returncode or -signal.SIGKILL
    if process.stdout is not None:
        process.stdout.close()


class HostView:
    """The inspection's view of a host.

    Args:
        root: the folder that contains /proc, /sys, /dev and /etc.
        environment: the environment of this process.
        programs: runs programs; by default real ones.
    """

    def __init__(
        self,
        root: str = "/",
        environment: Mapping[str, str] | None = None,
        programs: Programs | None = None,
    ) -> None:
        self._root = Path(root)
        self.environment = os.environ if environment is None else environment
        self.unknown: dict[str, str] = {}
        self.programs = Programs(self.unknown) if programs is None else programs

    # --- files ------------------------------------------------------------------------------------------------------

    def text(self, path: str) -> str | None:
        """Return a file's content, without surrounding white space; None if it cannot be read."""
        try:
            return self._place(path).read_text(errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.unknown[path] = error.strerror or str(error)
            return None

    def quiet_text(self, path: str) -> str | None:
        """Return a file's content like `text`, but without recording the reason if it cannot be read."""
        try:
            return self._place(path).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the number in a file; None if it contains a word, such as `max`."""
        return whole_number(self.quiet_text(path))

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        try:
            return sorted(os.listdir(self._place(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unknown[path] = error.strerror or str(error)
            return []

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return os.path.exists(self._place(path))

    def link(self, path: str) -> str | None:
        """Return the last component of the target of a symbolic link."""
        try:
            return os.path.basename(os.readlink(self._place(path)))
        except OSError:
            return None

    def path_below(self, path: str, part: str) -> tuple[str, ...]:
        """Return the components of a symbolic link's target from the first one that begins with `part`."""
        try:
            names = os.readlink(self._place(path)).split("/")
        except OSError:
            return ()
        first = next((number for number, name in enumerate(names) if name.startswith(part)), len(names))
        return tuple(names[first:])

    def space(self, path: str) -> tuple[int, int] | None:
        """Return the total and the free bytes of the file system that contains a path."""
        try:
            found = os.statvfs(self._place(path))
        except OSError:
            return None
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def may_write(self, path: str) -> bool:
        """Return whether this process may write to a path."""
        return os.access(self._place(path), os.W_OK)

    def _place(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    # --- Python -----------------------------------------------------------------------------------------------------

    def package(self, name: str, distributions: tuple[str, ...]) -> tuple[str | None] | None:
        """Return the version of a package without importing it.

        Args:
            name: the import name.
            distributions: the names that it may be installed under.

        Returns:
            None if it is not installed; a version of None if it can be imported, but was not installed.
        """
        for distribution in distributions:
            try:
                return (metadata.version(distribution),)
            except metadata.PackageNotFoundError:
                continue
        spec = util.find_spec(name)
        # Any folder of that name could be imported as a namespace package, which has no origin.
        return None if spec is None or spec.origin is None else (None,)

    def package_file(self, name: str, file: str) -> str | None:
        """Return the text of a file in a package's folder, without importing the package; None if there is none."""
        spec = util.find_spec(name)
        if spec is None or spec.origin is None:
            return None
        try:
            return (Path(spec.origin).parent / file).read_text(errors="replace")
        except OSError:
            return None

    # --- the kernel -------------------------------------------------------------------------------------------------

    def hostname(self) -> str:
        """Return the name of this host."""
        return socket.gethostname()

    def uname(self) -> tuple[str, str]:
        """Return the kernel's release and the architecture."""
        told = os.uname()
        return told.release, told.machine

    def allowed_cores(self) -> int:
        """Return the number of cores that this process may run on."""
        return len(os.sched_getaffinity(0))

    def limit(self, which: int) -> tuple[int | None, int | None]:
        """Return a limit of this process, soft and hard; None means no limit."""
        import resource

        soft, hard = resource.getrlimit(which)
        unlimited = resource.RLIM_INFINITY
        return None if soft == unlimited else soft, None if hard == unlimited else hard

    def addresses(self) -> list[tuple[str, str, int]]:
        """Return interface, address and prefix length of every address of this host."""
        return [(each.interface, each.address.partition("%")[0], each.prefix) for each in every_address()]

    def trials(self) -> dict[str, str]:
        """Return the results of the trials of kernel features."""
        from farandole.control.agent.inspect.trials import try_all

        return try_all()

    def time_of_day(self) -> tuple[bool, float] | None:
        """Return whether the kernel's clock is synchronised, and its possible error in seconds."""
        from farandole.control.agent.inspect.trials import kernel_time

        return kernel_time()


def whole_number(text: str | None) -> int | None:
    """Return the whole number in a text; None if it is not one."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def json_in(answer: str | None) -> dict[str, Any]:
    """Return the JSON object in the last line of a program's output; any text may precede it."""
    try:
        told = json.loads((answer or "").strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return told if isinstance(told, dict) else {}
