"""A fake host for inspections: its files are below a folder, its programs have prepared answers, and its kernel gives
constant answers.
"""

from __future__ import annotations

import resource
from pathlib import Path

from farandole.control.agent.inspect.view import HostView, Programs

GIB = 1 << 30


class FakePrograms(Programs):
    """Programs with prepared answers, by the prefix of the command."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__({})
        self._prepared = answers

    def path(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if any(name in words.split()[0] for words in self._prepared) else None

    def start(self, *words: str) -> None:
        pass

    def answer(self, *words: str, seconds: float = 0.0) -> str | None:
        return next((text for begin, text in self._prepared.items() if " ".join(words).startswith(begin)), None)


class FakeView(HostView):
    """A host whose files are below a folder, and whose kernel gives constant answers."""

    def __init__(self, root: Path, environment: dict[str, str], answers: dict[str, str]) -> None:
        super().__init__(str(root), environment, FakePrograms(answers))

    def package(self, name: str, distributions: tuple[str, ...]) -> tuple[str | None] | None:
        return {"torch": ("2.13.0+cpu",), "jax": (None,)}.get(name)

    def package_file(self, name: str, file: str) -> str | None:
        return "cuda: Optional[str] = None\n"

    def hostname(self) -> str:
        return "earth"

    def uname(self) -> tuple[str, str]:
        return "6.1.0", "x86_64"

    def allowed_cores(self) -> int:
        return 4

    def limit(self, which: int) -> tuple[int | None, int | None]:
        return (1024, 4096) if which == resource.RLIMIT_NOFILE else (None, None)

    def addresses(self) -> list[tuple[str, str, int]]:
        return [("lo", "127.0.0.1", 8), ("eth0", "10.0.0.1", 24), ("eth0", "fe80::1", 64)]

    def space(self, path: str) -> tuple[int, int] | None:
        return (64 << 20, 63 << 20) if path == "/dev/shm" else (100 * GIB, 50 * GIB)

    def trials(self) -> dict[str, str]:
        return {"memfd": "", "pidfd": "[Errno 38] Function not implemented"}

    def time_of_day(self) -> tuple[bool, float] | None:
        return True, 0.002
