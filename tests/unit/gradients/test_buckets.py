from __future__ import annotations

from farandole.worker.core.dtype import DType
from farandole.worker.gradients.buckets import Bucket, Layout, plan_buckets


def floats(*shape: int, nbytes: int) -> Layout:
    return Layout(DType.F32, shape, nbytes)


def test_buckets_are_in_reverse_order_aligned_and_of_one_type_each():
    layouts = [
        floats(3, nbytes=12),
        floats(16, nbytes=64),
        Layout(DType.F64, (5,), 40),
        floats(0, nbytes=0),
        floats(nbytes=4),
        floats(17, nbytes=68),
    ]
    assert plan_buckets(layouts) == [
        Bucket(DType.F32, 320, ((5, 0), (4, 128), (1, 192), (0, 256))),
        Bucket(DType.F64, 64, ((2, 0),)),
    ]


def test_empty_gradients_need_no_bucket():
    assert plan_buckets([]) == [] and plan_buckets([floats(0, nbytes=0)]) == []
