"""Writes checkpoints one at a time, in a separate thread, while training continues."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable

from farandole.worker.elastic.checkpoint.store import AttemptId, Complete, Store
from farandole.worker.elastic.checkpoint.write_attempt import Attempt, AttemptDropped, Part, excuse

# Seconds that a new attempt waits for the previous one, which often is complete and has not noticed it yet.
_LOOK_SECONDS = 0.02
# Seconds that a process waits for its last checkpoint before it ends.
_EXIT_SECONDS = 120.0

Say = Callable[[str, str], None]
"""A function that takes a level (info or warning) and a line for the user."""


class BackgroundWriter:
    """Writes checkpoints while training continues.

    Args:
        store: the folder that they are written to.
        keep: the number of complete checkpoints that are kept.
        say: called with messages for the user, on rank 0.
    """

    def __init__(self, store: Store, keep: int, say: Say) -> None:
        self._store = store
        self._keep = keep
        self._say = say
        self._attempt: Attempt | None = None
        self._thread: threading.Thread | None = None
        self._trouble = ""
        """The reason why the last attempt failed; "" if it did not."""
        self._told_busy: AttemptId | None = None
        """The unfinished attempt named in the last warning that a later one was skipped."""
        # A weak reference, because the object has the copy of the last checkpoint. While its thread writes, the thread
        # holds it.
        atexit.register(_wait_at_exit, weakref.ref(self))

    def busy_with(self, generation: int) -> AttemptId | None:
        """Return the attempt that is still being written, or None.

        An attempt that only waits for other ranks checks them again; if its world is not of this generation, it is
        given up.
        """
        if self._attempt is None or self._thread is None:
            return None
        if self._attempt.id.generation != generation:
            self._attempt.give_up()
        if self._attempt.waiting:
            self._attempt.look_now()
            self._thread.join(_LOOK_SECONDS)
        return self._attempt.id if self._thread.is_alive() else None

    def start(self, part: Part) -> None:
        """Begin to write. No other attempt may be in progress."""
        assert self._thread is None or not self._thread.is_alive()
        self._attempt = Attempt(self._store, part)
        self._thread = threading.Thread(
            target=self._see_to_its_end, args=(self._attempt, part), name="farandole-checkpoint", daemon=True
        )
        self._thread.start()

    def skip(self, attempt: AttemptId, rank: int, busy: AttemptId) -> None:
        """Notify the other ranks that this one cannot take part, without waiting for the disk."""
        reason = f"the checkpoint of step {busy.step} was still being written"
        if rank == 0 and busy != self._told_busy:
            self._told_busy = (
                busy  # One slow attempt causes many later ones to be skipped; the user is told of the first.
            )
            self._say("warning", f"the checkpoint of step {attempt.step} is skipped: {reason}; training goes on")
        threading.Thread(target=excuse, args=(self._store, attempt, rank, reason), daemon=True).start()

    def wait(self, timeout: float | None) -> bool:
        """Wait until no attempt is in progress; return whether the last one succeeded."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
        return not self._trouble

    def _see_to_its_end(self, attempt: Attempt, part: Part) -> None:
        begun = time.monotonic()
        try:
            complete = attempt.run()
        except AttemptDropped as dropped:
            self._tell_of_drop(part, str(dropped), time.monotonic() - begun)
            self._trouble = str(dropped)
            return
        if complete is not None:
            with contextlib.suppress(
                OSError
            ):  # Files that cannot be removed now are removed after the next checkpoint.
                self._store.retain(self._keep)
            self._tell_of_success(complete, time.monotonic() - begun)
        self._trouble = ""

    def _tell_of_success(self, complete: Complete, seconds: float) -> None:
        size = complete.manifest.size / 1e6
        again = ", after the one before could not be written" if self._trouble else ""
        level = "warning" if self._trouble else "info"
        step = complete.manifest.step
        self._say(level, f"the checkpoint of step {step} is in {complete.path}{again} ({size:.1f} MB, {seconds:.1f} s)")

    def _tell_of_drop(self, part: Part, reason: str, seconds: float) -> None:
        # A full disk is full at the next attempt too: the user is told once.
        if part.rank != 0 or reason == self._trouble:
            return
        newest = self._store.newest()
        kept = "there is no earlier one" if newest is None else f"the last good one, {newest}, is kept"
        step = part.attempt.step
        self._say(
            "warning",
            f"the checkpoint of step {step} was not written: {reason}; {kept}, and training goes on; the next one is "
            f"tried when it is due ({seconds:.1f} s)",
        )

    def _at_exit(self) -> None:
        """Wait for the last checkpoint when a script ends, unless it ends with an error."""
        if self._attempt is None or hasattr(sys, "last_value"):
            return
        self.wait(_EXIT_SECONDS)


def _wait_at_exit(writer: weakref.ref[BackgroundWriter]) -> None:
    there = writer()
    if there is not None:
        there._at_exit()
