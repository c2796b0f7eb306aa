"""Counting training steps out of sight of PyTorch's compiler: a graph that counts would be made anew each time."""

from __future__ import annotations

from farandole.core import basics
from farandole.torch.uncompiled import uncompiled

count_step = uncompiled(basics.count_step)
