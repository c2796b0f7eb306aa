"""Counting training steps out of sight of PyTorch's compiler: a graph that counts would be made anew each time."""

from __future__ import annotations

from farandole.torch.no_compile import no_compile
from farandole.worker.core import basics

count_step = no_compile(basics.count_step)
