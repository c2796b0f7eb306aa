"""Gradient tapes whose gradients are reduced over all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.tensorflow import reduction
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.variable_check import compare_variables
from farandole.worker.collectives.compression import Compressor
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.wrapper_gradients import GradientReduction, checked_layers
from farandole.worker.gradients.wrapper_options import checked


class _Distributed:
    """A mixin class in front of the wrapped tape's class."""

    _farandole: GradientReduction

    def register_local_source(self, source: Any) -> None:
        """Mark a source as local: its gradient is not reduced.

        It is divided by the number of ranks, unless scale_local_gradients=False was passed.
        """
        self._farandole.register_local(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients, reduced over all ranks.

        Args:
            target: the same as for `tf.GradientTape`.
            sources: variables or tensors.
            output_gradients: the same as for `tf.GradientTape`.
            use_generic_names: ignored: ranks' gradients always match by their places in `sources`.
            unconnected_gradients: the same as for `tf.GradientTape`.

        Returns:
            The gradients, in the structure of the sources; a list for a tuple.
        """
        plain: Any = super()
        gradients = plain.gradient(target, sources, output_gradients, unconnected_gradients)
        variables = tf.nest.flatten(sources)
        with tf.control_dependencies(compare_variables(self._farandole, variables, "DistributedGradientTape")):
            flat = self._farandole.reduce(tf.nest.flatten(gradients), variables)
        structure = list(sources) if isinstance(sources, tuple) else sources
        return tf.nest.pack_sequence_as(structure, flat)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return pairs of a source and its gradient: first the local ones, then the reduced ones."""
        gradients = self.gradient(target, list(sources), output_gradients, use_generic_names)
        local: list[tuple[Any, Any]] = []
        reduced: list[tuple[Any, Any]] = []
        for source, gradient in zip(sources, gradients, strict=True):
            (local if self._farandole.is_local(source) else reduced).append((source, gradient))
        return local, reduced


Tape = TypeVar("Tape", bound=tf.GradientTape)


def DistributedGradientTape(
    gradtape: Tape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Tape:
    """Return a tape that does the same as the given one, with gradients reduced over all ranks.

    Args:
        gradtape: a `tf.GradientTape`, before or after it has recorded. The result shares its state.
        device_dense: the device for the ops of dense gradients; "": TensorFlow's choice.
        device_sparse: the device for the ops of `tf.IndexedSlices`.
        compression: the form in which gradients are sent, such as `Compression.fp16`.
        sparse_as_dense: whether `tf.IndexedSlices` become dense; else the rows of all ranks are gathered.
        op: Average (the default), Sum or Adasum.
        gradient_predivide_factor: with Average, divide by this before the sum and by size / this after it.
        num_groups: deprecated; pass the number as `groups`.
        groups: the number of groups of neighbours, or lists of variables, whose gradients are reduced together.
        process_set: the ranks that reduce; on others, gradients are local.
        scale_local_gradients: whether gradients of local sources are divided by the number of ranks.

    Raises:
        ValueError: an argument is not valid, or init() has not been called.

    Example:
        >>> with tf.GradientTape() as tape:
        ...     loss = loss_of(model(x, training=True), y)
        >>> tape = hvd.DistributedGradientTape(tape)
        >>> gradients = tape.gradient(loss, model.trainable_variables)
    """
    options = checked(
        "DistributedGradientTape",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    kind = type(gradtape)
    if issubclass(kind, _Distributed):
        raise InvalidRequestError("this tape is a DistributedGradientTape already; wrap the original one, once.")
    if not isinstance(gradtape, tf.GradientTape):
        raise InvalidRequestError(f"DistributedGradientTape wraps a tf.GradientTape, not an object of {kind}.")
    its_reduction = GradientReduction(
        options,
        name=reduction.names_in_graphs("DistributedGradientTape", process_set),
        key_of=reduction.key_of,
        backend=lambda: reduction,
    )
    # The reduction is an attribute of the class, because the object shares its attributes with the given tape, which
    # may be wrapped a second time.
    made: Tape = object.__new__(type(kind.__name__, (_Distributed, kind), {"_farandole": its_reduction}))
    made.__dict__ = gradtape.__dict__
    return made


def PartialDistributedGradientTape(
    gradtape: Tape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Tape:
    """Return a `DistributedGradientTape` that does not reduce the gradients of some layers.

    Args:
        gradtape: the tape; it and the other arguments are those of `DistributedGradientTape`.
        local_layers: a layer of Keras, or several.

    Raises:
        ValueError: `local_layers` are not layers, or `DistributedGradientTape` raises it.
    """
    layers = checked_layers(local_layers)
    made = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    wrapped: Any = made
    wrapped._farandole.register_local_layers(layers)
    return made
