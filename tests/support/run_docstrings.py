"""Run the examples of docstrings in this process, a world of one: run_docstrings.py ROOM FOLDER.

ROOM is a folder of the package, such as `torch`, or `others` for all that need no framework. Examples can use the names
of their module and, for a front end, those of `GIVEN`: a model, a loss and data. Files are written to FOLDER.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "farandole"
FRONT_ENDS = ("torch", "numpy", "tensorflow", "keras", "jax", "mxnet", "lightning")

_ARRAYS = "import numpy\nx, y = numpy.ones((64, 4), 'float32'), numpy.ones((64, 1), 'float32')\n"
_KERAS = (
    _ARRAYS
    + """
import keras
keras.utils.disable_interactive_logging()
def make_model():
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    made.compile('sgd', 'mse', metrics=['mae'])
    return made
model, optimizer, epochs, callbacks, batches = make_model(), keras.optimizers.SGD(0.1), 1, [], 2
"""
)
_TORCH = """
import array
import torch, torch.nn.functional as F, farandole.torch as hvd
hvd.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tensor, gradients, epochs, step = torch.ones(3), [torch.ones(3)], 1, 7
dataset = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.ones(64, 1))
"""
# What the examples of a front end take for granted, in the order in which it is made.
GIVEN = {
    "torch": _TORCH,
    "others": _TORCH,
    "numpy": "import numpy, farandole.numpy as hvd\nhvd.init()\narray = numpy.ones(3)\n",
    "tensorflow": _KERAS
    + """
import tensorflow as tf, farandole.tensorflow as hvd
hvd.init()
tensor, paths, images, labels = tf.ones(3), ['1.png', '2.png'], x, y
load = lambda path: tf.zeros(4)
loss_of = loss = keras.losses.MeanSquaredError()
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
""",
    "keras": _KERAS
    + "import tensorflow as tf, farandole.keras as hvd\nhvd.init()\n"
    + "dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)\n",
    "jax": _ARRAYS
    + """
import jax, jax.numpy as jnp, optax, farandole.jax as hvd
images, labels = x, y
hvd.init()
params, batch = {'w': jnp.zeros((4, 1))}, (x, y)
loss = lambda params, batch: jnp.mean((batch[0] @ params['w'] - batch[1]) ** 2)
gradients = jax.grad(loss)(params, batch)
optimizer = optax.sgd(0.1)
state = optimizer.init(params)
def step(params, state, batch):
    gradients = hvd.elastic.reduce_gradients(jax.grad(loss)(params, batch))
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state
""",
    "lightning": _TORCH + "import lightning, farandole.lightning\n",
    "mxnet": "import mxnet as mx, farandole.mxnet as hvd\nhvd.init()\narray = mx.nd.ones(3)\n",
}


def files(room: str) -> Iterator[Path]:
    """Yield the sources of a room."""
    for file in sorted(PACKAGE.rglob("*.py")):
        named = {*file.relative_to(PACKAGE).parts} & {*FRONT_ENDS}
        if named == {room} or (not named and room == "others"):
            yield file


def docstrings(file: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the name, the text and the line of each docstring with an example that runs."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False) or ""
            if any(doctest.SKIP not in each.options for each in doctest.DocTestParser().get_examples(text)):
                yield getattr(node, "name", "module"), text, node.body[0].lineno


def module_name(file: Path) -> str:
    """Return the name under which a source is imported."""
    parts = file.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> int:
    """Run the examples of a room."""
    room, folder = sys.argv[1:]
    os.chdir(folder)
    given: dict[str, Any] = {}
    exec(GIVEN.get(room, ""), given)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    for file in files(room):
        for name, text, line in docstrings(file):
            module = importlib.import_module(module_name(file))
            where = {**vars(module), **given}
            test = doctest.DocTestParser().get_doctest(text, where, f"{module.__name__}.{name}", str(file), line - 1)
            runner.run(test)
    print(f"{runner.tries} examples, {runner.failures} failed")
    return int(runner.failures > 0 or runner.tries == 0)


if __name__ == "__main__":
    sys.exit(main())
