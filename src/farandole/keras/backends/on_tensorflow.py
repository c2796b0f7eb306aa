"""Keras with TensorFlow, whose graphs may prune ops, and which rewrites functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

import farandole.tensorflow as hvd
from farandole.keras.backends.backend import KerasBackend
from farandole.tensorflow import errors, reduction


class _OnTensorFlow(KerasBackend):
    after = staticmethod(reduction.after)
    check_scope = staticmethod(reduction.check_scope)
    divided_by_ranks = staticmethod(reduction.divided_by_ranks)
    reduce = staticmethod(reduction.reduce)
    run_anyway = staticmethod(reduction.run_anyway)
    scaled = staticmethod(reduction.scaled)
    stand_in = staticmethod(reduction.stand_in)
    translate = staticmethod(errors.translate)

    def tensor(self, value: Any) -> Any:
        return tf.convert_to_tensor(value)

    def dense(self, gradient: Any) -> Any:
        return tf.convert_to_tensor(gradient)

    def as_it_is(self, function: Any) -> Any:
        return tf.autograph.experimental.do_not_convert(function)

    @errors.translating
    def call(self, function: str, value: Any, how: Mapping[str, Any]) -> Any:
        return super().call(function, value, how)


BACKEND = _OnTensorFlow(hvd)
