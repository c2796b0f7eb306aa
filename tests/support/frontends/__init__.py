"""The front ends in the form that the conformance suite uses: one class each, one file for each framework.

A new front end needs a file and a row of `FRONT_ENDS`.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from frontends.front_end import DTYPES, FrontEnd
from frontends.jax import Compiled, Jax
from frontends.keras import OnJax, OnTensorFlow, OnTorch
from frontends.mxnet import MXNet
from frontends.numpy import Numpy
from frontends.tensorflow import Eager, Function, Session
from frontends.torch import ByNccl, OnFakeGpu, Torch

__all__ = ["DTYPES", "FIRST", "FRONT_ENDS", "KEPT", "FrontEnd"]

FRONT_ENDS: dict[str, FrontEnd] = {
    front.name: front
    for front in (
        Torch(),
        OnFakeGpu(),
        ByNccl(),
        Numpy(),
        Eager(),
        Function(),
        Session(),
        OnTensorFlow(),
        OnTorch(),
        OnJax(),
        Jax(),
        Compiled(),
    )
}
# MXNet is tested in a separate environment, by `make test-frameworks`.
if importlib.util.find_spec("mxnet") is not None:
    FRONT_ENDS[MXNet.name] = MXNet()
# It runs everything; see `tests/conformance/conftest.py`.
FIRST = next(iter(FRONT_ENDS))

# What a test leaves in a worker for its next function there.
KEPT: list[Any] = []
