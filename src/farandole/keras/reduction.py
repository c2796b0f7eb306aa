"""The reduction of one Keras optimizer's gradients."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from farandole.keras import backends, left_out
from farandole.worker.gradients.wrapper_gradients import GradientReduction
from farandole.worker.gradients.wrapper_options import WrapperOptions

# By process set, because a rank uses none of the optimizers of sets that it is not in.
_numbers: dict[int, Iterator[int]] = defaultdict(lambda: itertools.count(1))


def reduction(options: WrapperOptions, key_of: Callable[[Any], Any], backend: str | None = None) -> GradientReduction:
    """Return the object that reduces the gradients of an optimizer.

    Args:
        options: the options of the reduction.
        key_of: a function that returns a variable's key, which is the same for Keras' variable and the backend's in it.
        backend: the name of the backend whose tensors the gradients are; None: that of Keras 3.
    """

    @functools.cache
    def name() -> str:
        # By the order in which optimizers are used, which is the same on all ranks, where names of layers need not be:
        # a rank that has made one more model counts on from there.
        number = options.process_set.process_set_id or 0
        of_set = f"set{number}." if number else ""
        return f"keras.{of_set}optimizer{next(_numbers[number])}.gradient"

    return GradientReduction(
        options,
        name=name,
        key_of=key_of,
        backend=lambda: backends.chosen(backend),
        is_left_out=left_out.is_on,
    )
