"""How arrays are looked at, staged and compressed."""

from __future__ import annotations

import importlib.util
import inspect

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.errors import InvalidRequestError
from farandole.numpy.arrays import Arrays
from farandole.worker.core.dtype import DType

FRONT = Arrays()
BASE = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("kind", ["f4", ">f4", "<f4"])
def test_byte_order_is_no_part_of_the_type(kind):
    assert FRONT.dtype(np.zeros(2, kind)) == DType.F32


@pytest.mark.parametrize(
    ("array", "is_ready"),
    [
        (BASE, True),
        (BASE.T, False),
        (BASE[:, 1:], False),
        (BASE[1:], True),
        (BASE[:0], True),
        (np.float32(1).reshape(()), True),
        (BASE.astype(">f4"), False),
        (np.frombuffer(b"\0" * 9, np.uint8)[1:].view(np.float32), False),
    ],
)
def test_arrays_that_are_not_ready_are_copied(array, is_ready):
    staged = FRONT.stage(array)
    assert FRONT.is_ready(staged) and (staged is array) == is_ready
    np.testing.assert_array_equal(staged, array)
    assert staged.dtype == np.float32 and staged.shape == array.shape


def test_result_is_written_into_any_layout():
    array = BASE.astype(">f4").T.copy(order="F")
    FRONT.assign(array, BASE.T * 2)
    np.testing.assert_array_equal(array, BASE.T * 2)
    assert array.dtype == np.dtype(">f4")


@pytest.mark.parametrize("given", [1.5, np.float64(1.5), [1, 2], range(3), BASE, BASE.view(np.matrix)])
def test_numbers_and_sequences_are_accepted_as_arrays(given):
    assert type(FRONT.accept(given, in_place=False)) is np.ndarray


def test_compression_keeps_types():
    for dtype in (np.float16, np.float32, np.float64):
        compressed, context = hvd.Compression.fp16.compress(np.ones(3, dtype))
        assert compressed.dtype == np.float16 and hvd.Compression.fp16.decompress(compressed, context).dtype == dtype
    whole = np.array([70000])
    assert hvd.Compression.fp16.compress(whole)[0] is whole


@pytest.mark.skipif(importlib.util.find_spec("ml_dtypes") is not None, reason="ml_dtypes is installed")
def test_bfloat16_needs_ml_dtypes():
    with pytest.raises(InvalidRequestError, match="pip install ml_dtypes"):
        hvd.Compression.bf16.compress(np.ones(3))


def test_names_and_signatures_are_those_of_torch():
    """But for what needs gradients, modules, devices or sparse tensors."""
    import farandole.torch

    lacking = {
        "DistributedOptimizer",
        "ReducesGradients",
        "SyncBatchNorm",
        "broadcast_optimizer_state",
        "broadcast_parameters",
        "convert_sync_batchnorm",
        "local_device",
        "sparse_allreduce_async",
    }
    assert set(farandole.torch.__all__) - set(hvd.__all__) == lacking and set(hvd.__all__) <= set(dir(hvd))
    for name in hvd.__all__:
        ours, theirs = getattr(hvd, name), getattr(farandole.torch, name)
        if inspect.isfunction(ours):
            assert written(ours) == written(theirs), name


def written(function: object) -> list[tuple[str, object]]:
    parameters = inspect.signature(function).parameters.values()
    return [(each.name, each.default) for each in parameters if each.name != "compression"]
