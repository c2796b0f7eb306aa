"""Counting training steps outside of compiled graphs: PyTorch's compiler would recompile a graph that counts."""

from __future__ import annotations

from farandole.torch.no_compile import no_compile
from farandole.worker.core import basics

count_step = no_compile(basics.count_step)
