from __future__ import annotations

import torch

from farandole.torch.buckets import Bucket, plan_buckets


def test_reverse_order_aligned_and_by_type():
    tensors = [
        torch.empty(3),
        torch.empty(16),
        torch.empty(5, dtype=torch.float64),
        torch.empty(0),
        torch.empty(()),
        torch.empty(17),
    ]
    assert plan_buckets(tensors) == [
        Bucket(torch.float32, 320, ((5, 0), (4, 128), (1, 192), (0, 256))),
        Bucket(torch.float64, 64, ((2, 0),)),
    ]


def test_nothing_needs_no_bucket():
    assert plan_buckets([]) == [] and plan_buckets([torch.empty(0)]) == []
