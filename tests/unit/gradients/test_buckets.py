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


def test_buckets_have_limits_but_a_gradient_is_never_cut():
    sizes = [128, 64, 300, 64, 64, 64]
    buckets = plan_buckets([floats(size // 4, nbytes=size) for size in sizes], (64, 192))
    assert [[index for index, _ in bucket.placements] for bucket in buckets] == [[5], [4, 3], [2], [1, 0]]
    assert [bucket.size for bucket in buckets] == [64, 128, 320, 192]


def test_each_element_type_has_its_first_bucket():
    small = [floats(16, nbytes=64), Layout(DType.F16, (32,), 64)] * 3
    buckets = plan_buckets(small, (64, 128))
    assert [(bucket.dtype, bucket.size) for bucket in buckets] == [
        (DType.F16, 64),
        (DType.F32, 64),
        (DType.F16, 128),
        (DType.F32, 128),
    ]
