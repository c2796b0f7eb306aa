"""farandole itself: `farandole run` with limits to the number of workers.

What the user starts is only a client; the launcher lives on in a process of its own, the daemon. What is killed as the
launcher is what the user has started; the daemon, and all of them together, have events of their own.
"""

from __future__ import annotations

import json
import os
import sys
import time

from benchmarks.elastic.jobs import Job, JobFailed, parent_of, worker_script

_NAME = "measured"
_ATTACH_SECONDS = 10.0
_HOSTS = "hosts"
_RUN = (sys.executable, "-m", "farandole", "run")


def missing() -> str | None:
    """Return None: it can always be used."""
    return None


class FarandoleJob(Job):
    """One client, and what it has started."""

    def start(self) -> None:
        size = ("-np", str(self.setting.size))
        if not self.setting.elastic:
            self.spawn((*_RUN, *size, sys.executable, worker_script("farandole_steps"), "plain"))
            return
        limits = ("--min-np", "2", "--max-np", str(self.setting.most))
        self._set_slots(self.setting.size)
        hosts = ("--host-discovery-script", f"cat {self.folder / _HOSTS}")
        self._client = self.spawn(
            (*_RUN, "--job", _NAME, *size, *limits, *hosts, sys.executable, worker_script("farandole_steps")),
            self._environment(),
        )

    def add_worker(self) -> None:
        self._set_slots(self.setting.size + 1)

    def coordinator(self) -> int:
        return self._client.pid

    def daemon(self) -> int:
        return int(json.loads((self.folder / "farandole" / "jobs" / _NAME / "job.json").read_text())["pid"])

    def launcher(self) -> list[int]:
        # The watchdog first: it would take over from the daemon.
        return [parent_of(self.daemon()), self.daemon(), self._client.pid]

    def is_taken_over(self, printed: int) -> bool:
        return "another one has taken over" in self.output(printed)

    def attach(self) -> float | None:
        started, printed = time.monotonic(), self.printed()
        self._client = self.spawn((*_RUN, "--attach", _NAME), self._environment())

        def is_shown() -> bool:
            return _NAME in self.output(printed) or self.is_taken_over(printed)

        if not self.wait_until(is_shown, _ATTACH_SECONDS):
            raise JobFailed(f"farandole run --attach {_NAME} showed nothing{self.last_words(printed)}")
        return time.monotonic() - started

    def _environment(self) -> dict[str, str]:
        # The folder in which jobs are found by name: not the user's own.
        return {"XDG_CACHE_HOME": str(self.folder)}

    def _set_slots(self, slots: int) -> None:
        """Write how many workers this machine has room for, atomically: the launcher may read the file at any time."""
        draft = self.folder / f"{_HOSTS}.draft"
        draft.write_text(f"localhost:{slots}\n")
        os.replace(draft, self.folder / _HOSTS)
