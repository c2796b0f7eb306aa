"""The trainings of `python -m benchmarks queue --jobs training`, in NumPy: handwritten digits, and letters of a text.

Both are networks with one hidden layer; the model of language first looks up a vector for each of its letters. All is
computed in float64, so that a training comes to the same loss, to many digits, however its batches were shared out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from farandole.worker.elastic.ledger import Ledger

MODELS = ("digits", "language")
SEED = 1
_TEXT = "a farandole is a chain dance: join hands, and follow the one at the head. " * 40
_LENGTH = 16
"""The number of letters from which the next one is predicted."""
_LETTERS, _VECTOR, _HIDDEN = 128, 8, 64
_MOMENTUM = 0.9
_RATE = 0.1

Arrays = Mapping[str, Any]


class Data(NamedTuple):
    """The data to train on, and the data to test with."""

    inputs: Any
    targets: Any
    test_inputs: Any
    test_targets: Any


class Quality(NamedTuple):
    """The quality of a model on data that it was not trained on."""

    loss: float
    accuracy: float


def load(model: str) -> Data:
    """Return the data of a model."""
    inputs, targets = _digits() if model == "digits" else _language()
    order = np.random.default_rng(SEED).permutation(len(targets))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return Data(inputs[train], targets[train], inputs[test], targets[test])


def _digits() -> tuple[Any, Any]:
    # Importing scikit-learn takes longer than starting all the rest.
    (folder,) = importlib.util.find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr,misc]
    table = np.loadtxt(Path(folder) / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1] / 16, table[:, -1].astype(int)


def _language() -> tuple[Any, Any]:
    letters = np.frombuffer(_TEXT.encode(), np.uint8).astype(int)
    pieces = np.lib.stride_tricks.sliding_window_view(letters, _LENGTH)[:-1]
    return pieces, letters[_LENGTH:]


def begin(model: str) -> dict[str, Any]:
    """Return the parameters with which a training begins, and the optimizer's velocity beside each."""
    random = np.random.default_rng(SEED)
    inputs, outputs = (64, 10) if model == "digits" else (_LENGTH * _VECTOR, _LETTERS)
    parameters = {"vectors": random.normal(0, 1, (_LETTERS, _VECTOR))} if model == "language" else {}
    for name, rows, columns in (("hidden", inputs, _HIDDEN), ("output", _HIDDEN, outputs)):
        parameters[name] = random.normal(0, (2 / rows) ** 0.5, (rows, columns))
        parameters[f"{name} bias"] = np.zeros(columns)
    return parameters | {f"velocity of {name}": np.zeros_like(array) for name, array in parameters.items()}


def names(state: Arrays) -> list[str]:
    """Return the names of the parameters, in the order of their gradients."""
    return [name for name in state if not name.startswith("velocity of ")]


def gradients(state: Arrays, inputs: Any, targets: Any) -> list[Any]:
    """Return the gradients of the mean loss, in the order of `names`."""
    x, hidden, shares = _forward(state, inputs)
    error = shares.copy()
    error[np.arange(len(targets)), targets] -= 1
    error /= len(targets)
    below = (error @ state["output"].T) * (hidden > 0)
    found = {
        "hidden": x.T @ below,
        "hidden bias": below.sum(0),
        "output": hidden.T @ error,
        "output bias": error.sum(0),
    }
    if "vectors" in state:
        found["vectors"] = np.zeros_like(state["vectors"])
        np.add.at(found["vectors"], inputs, (below @ state["hidden"].T).reshape(*inputs.shape, _VECTOR))
    return [found[name] for name in names(state)]


def _forward(state: Arrays, inputs: Any) -> tuple[Any, Any, Any]:
    """Return the input and the output of the hidden layer, and the probabilities of the classes."""
    x = state["vectors"][inputs].reshape(len(inputs), -1) if "vectors" in state else inputs
    hidden = np.maximum(x @ state["hidden"] + state["hidden bias"], 0)
    scores = hidden @ state["output"] + state["output bias"]
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return x, hidden, shares / shares.sum(1, keepdims=True)


def update(state: Arrays, reduced: list[Any]) -> None:
    """Take a step of SGD with momentum, in place."""
    for name, gradient in zip(names(state), reduced, strict=True):
        velocity = state[f"velocity of {name}"]
        velocity *= _MOMENTUM
        velocity += gradient
        parameter = state[name]
        parameter -= _RATE * velocity


def quality(state: Arrays, data: Data) -> Quality:
    """Return the quality of the parameters."""
    shares = _forward(state, data.test_inputs)[2]
    right = shares[np.arange(len(data.test_targets)), data.test_targets]
    return Quality(float(-np.log(right).mean()), float((shares.argmax(1) == data.test_targets).mean()))


def train_alone(model: str, steps: int, batch: int) -> Quality:
    """Return the quality that one process reaches with the steps of a job."""
    data, state, ledger = load(model), begin(model), ledger_of(steps, batch)
    while ledger.left:
        (share,), ledger = ledger.step((batch,))
        chosen = np.asarray(ledger.indices(share)) % len(data.targets)
        update(state, gradients(state, data.inputs[chosen], data.targets[chosen]))
    return quality(state, data)


def ledger_of(steps: int, batch: int) -> Ledger:
    """Return the ledger of a training of `steps` steps, whose samples are numbers modulo the size of the data."""
    return Ledger(steps * batch, SEED)
