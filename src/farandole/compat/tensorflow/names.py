"""Names of `horovod.tensorflow` that `farandole.tensorflow` lacks, for scripts and Horovod's tests."""

from farandole.compat import keras_names  # noqa: F401 - It is imported for its effects.
from farandole.compat.support import check_extension, gpu_available, split_list
from farandole.compat.tensorflow.mpi_ops import (
    SUMS,
    check_num_rank_power_of_2,
    handle_average_backwards_compatibility,
)
from farandole.compat.tensorflow.util import _cache, _executing_eagerly, _make_subgraph, refs_to_vars, vars_to_refs

_IS_TF2 = True
globals().update(SUMS)

__all__ = [
    "_IS_TF2",
    "_cache",
    "_executing_eagerly",
    "_make_subgraph",
    "check_extension",
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "refs_to_vars",
    "split_list",
    "vars_to_refs",
    *SUMS,
]
