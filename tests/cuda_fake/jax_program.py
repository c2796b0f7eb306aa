"""A worker of test_jax.py: collectives in functions that JAX compiles for a GPU, and what they give."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax._src.hardware_utils as hardware
import numpy as np

import farandole.jax as hvd

# JAX looks for the files of a real driver.
hardware.has_visible_nvidia_gpu = lambda: True


def main(folder: Path) -> None:
    """Write what each collective gave into a file of this rank."""
    hvd.init()
    jax.config.update("jax_cuda_visible_devices", str(hvd.local_rank()))
    [device] = jax.local_devices(backend="cuda")

    def on_gpu(*values: float) -> Any:
        return jax.device_put(np.array(values, np.float32), device)

    def gradient(array: Any) -> Any:
        _, pull = jax.vjp(lambda x: hvd.broadcast(x, 0, name="pulled"), array)
        return pull(array)[0]

    functions = {
        "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum, name="sum"),
        "allgather": lambda x: hvd.allgather(x, name="all"),
        "alltoall": lambda x: hvd.alltoall(x, name="exchanged"),
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum, name="part"),
        "in a row": lambda x: hvd.allreduce(hvd.broadcast(x, 1, name="first"), op=hvd.Sum, name="second"),
        "gradient": gradient,
    }
    compiled = {name: jax.jit(function) for name, function in functions.items()}
    rank = hvd.rank()
    found: dict[str, list[list[float]]] = {"eager": []}
    for step in range(5):
        array = on_gpu(step + 10 * rank, 2 + rank)
        for name, function in compiled.items():
            result = function(array)
            assert result.devices() == {device}
            found.setdefault(name, []).append(np.asarray(result).tolist())
        found["eager"].append(np.asarray(hvd.allreduce(array, op=hvd.Sum, name="eager")).tolist())
    (folder / f"{rank}.json").write_text(json.dumps([device.local_hardware_id, found]))
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
