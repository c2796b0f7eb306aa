"""The check that all ranks train the same parameters: a small collective in the first step, and more if requested.

Each rank computes one number from its parameters, a *digest*. The check begins with a step of the optimizer and its
outcome is read in a later one, or by a thread if steps are compiled, so no rank ever waits for it: a rank that skips
its first step, as a gradient scaler may on some ranks, delays no other rank. The digests and their squares are summed
over the ranks, because a sum is the one collective in which ranks that have called `join` take part: they contribute
zeros.
"""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from farandole.errors import FarandoleError
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.declaration import Form
from farandole.worker.collectives.forms import Forms
from farandole.worker.collectives.plain_memory import Block, PlainMemory
from farandole.worker.core.basics import current, session_if_any
from farandole.worker.core.dtype import DType, Sum
from farandole.worker.core.group import ProcessSet
from farandole.worker.core.session import Session
from farandole.worker.core.user_log import tell_user

# So that the sum of the squares of 32,768 ranks fits into 64 bits.
_DIGEST_BITS = 24
# The number of ranks, the sums of digests and of their squares, and the sums of steps and of their squares.
_FORMAT = "<5q"

_LOOK_SECONDS = 0.1

# The number of checks of each name so far. An optimizer that makes a single step never reads its check, and the next
# one may have parameters of the same names. It is the same on all ranks, as their optimizers are.
_begun: Counter[str] = Counter()

_begin = Forms(PlainMemory()).runner(ALLREDUCE, Form(later=True))


class ParameterCheck:
    """The check of one optimizer.

    In elastic jobs nothing is checked: there, states and loops synchronize the parameters, and a newcomer's first step
    is not the first one of the others.
    """

    def __init__(self, name: str, process_set: ProcessSet, advice: str, *, steps_are_traced: bool = False) -> None:
        """Prepare the check.

        Args:
            name: the name by which the checks of all ranks are matched.
            process_set: the ranks that take part.
            advice: the line to add to a script whose ranks begin with different parameters.
            steps_are_traced: whether steps may be compiled, so that `step` is called only once. Then a thread reads the
                outcome.
        """
        self._name = name
        self._process_set = process_set
        self._advice = advice
        self._steps_are_traced = steps_are_traced
        self._steps = 0
        self._has_warned = False
        self._call: tuple[Session, int] | None = None

    def step(self, digest: Callable[[], int | None]) -> None:
        """Begin a check if one is due in this step, and report the outcome of the last one to the user.

        Args:
            digest: a function that returns the digest of this rank's parameters before the step; None if they are not
                known: then this rank contributes zeros.
        """
        if self._call is not None and not self._steps_are_traced:
            self._look()
        if self._call is None and self._is_due():
            self._begin(digest())
            if self._call is not None and self._steps_are_traced:
                threading.Thread(target=self._await_outcome, name="farandole-parameters", daemon=True).start()
        self._steps += 1

    def _is_due(self) -> bool:
        session = current()
        period = session.settings.check_parameters
        if self._has_warned or session.notices is not None or len(self._process_set.ranks) == 1:
            return False
        return period > 0 and (self._steps == 0 or (period > 1 and self._steps % period == 0))

    def _begin(self, digest: int | None) -> None:
        _begun[self._name] += 1
        steps = self._steps
        values = (0,) * 5 if digest is None else (1, digest, digest * digest, steps, steps * steps)
        block = Block(DType.I64, (len(values),), bytearray(struct.pack(_FORMAT, *values)))
        options = {"average": None, "op": Sum, "prescale": 1.0, "postscale": 1.0}
        name = f"parameters.{self._name}.{_begun[self._name]}"
        # A rank that has made its last step may have shut down by now: this one's step counts all the same.
        with suppress(FarandoleError):
            self._call = current(), _begin(block, name, self._process_set, options)

    def _await_outcome(self) -> None:
        # A thread that waited in the engine would count as one that the training waits for.
        while not self._look():
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> bool:
        """Report the outcome of the check in flight, if there is one, to the user; return whether none is in flight any
        more.
        """
        assert self._call is not None
        session, call = self._call
        # If its world has ended, other calls say so. A session that is closed meanwhile no longer knows the call.
        with suppress(FarandoleError, ValueError):
            if session is session_if_any():
                if not session.handles.poll(call):
                    return False
                self._tell(session, session.handles.synchronize(call))
        self._call = None
        return True

    def _tell(self, session: Session, sums: Any) -> None:
        count, digests, squares, steps, squares_of_steps = struct.unpack(_FORMAT, sums.data)
        # A rank that saw the end of the last check later than others may have begun this one in a later step.
        if are_equal(count, digests, squares) or not are_equal(count, steps, squares_of_steps):
            return
        self._has_warned = True
        if self._process_set.rank() == 0:
            tell_user(
                "warning",
                "the ranks have different parameters, so each of them trains a model of its own. If it is so from the "
                f"first step on, add {self._advice} before that step. If they are meant to differ, set "
                "FARANDOLE_CHECK_PARAMETERS=0.",
                session.world.rank,
            )


def are_equal(count: int, total: int, squares: int) -> bool:
    """Return whether all of some numbers are equal.

    Args:
        count: how many numbers there are.
        total: their sum.
        squares: the sum of their squares, which is smallest if all are equal.

    Example:
        >>> are_equal(2, 3 + 3, 9 + 9), are_equal(2, 2 + 4, 4 + 16)
        (True, False)
    """
    return count * squares == total * total


def digest_of(numbers: Sequence[int]) -> int:
    """Return the digest of parameters, each given as one signed 64-bit number."""
    return zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers)) >> (32 - _DIGEST_BITS)
