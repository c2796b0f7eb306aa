"""Whether reduced gradients are as they were, for ranks that lack them."""

from __future__ import annotations

import ctypes

import pytest
import torch

from farandole.torch.compression import Compression
from farandole.torch.gradient_entry import GradientEntry
from farandole.torch.tensor_gradients import TensorGradients
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import global_process_set
from farandole.worker.gradients.entry import Bundle
from farandole.worker.gradients.last_reduced import LastReduced
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.views import View


def scale_in_place(gradient):
    gradient.mul_(2)


def scale_past_the_count(gradient):
    gradient.data.mul_(2)


def scale_in_other_memory(gradient):
    gradient.data = gradient.data * 2


@pytest.mark.parametrize("change", [scale_in_place, scale_past_the_count, scale_in_other_memory])
def test_change_of_a_reduced_gradient_is_noticed(change):
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    entry = GradientEntry("a", parameter, False)
    entry.view = View((ctypes.c_char * 12)(), 0, 12)
    entry.attach()
    front_end = TensorGradients(ReduceOptions(Average, 1.0, 1.0, global_process_set), Compression.none)
    reduced = LastReduced([Bundle([entry])], front_end)
    reduced.keep(examine=True)
    assert reduced.are_intact()
    change(parameter.grad)
    assert not reduced.are_intact()
