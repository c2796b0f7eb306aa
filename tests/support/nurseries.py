"""Processes that fork workers, shared by all tests: one for each row of `RUNTIMES`, because imports take seconds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from worlds import Nursery

IMPORT_SECONDS = 100.0


class Runtime(NamedTuple):
    """A set of frameworks that workers have imported, but not used yet.

    Attributes:
        frameworks: the packages that must be installed.
        modules: the modules that are imported before the fork.
        variables: the environment variables during these imports.
    """

    frameworks: tuple[str, ...]
    modules: tuple[str, ...]
    variables: dict[str, str]


RUNTIMES = {
    "torch": Runtime(("torch",), ("torch._dynamo", "farandole.torch"), {}),
    "torch on a fake GPU": Runtime(("torch",), ("farandole.torch",), {}),
    "torch on a fake GPU, by NCCL": Runtime(("torch",), ("farandole.torch",), {}),
    "tensorflow": Runtime(
        ("tensorflow", "keras"),
        ("farandole.tensorflow", "farandole.keras"),
        {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
    ),
    "jax": Runtime(("jax",), ("torch", "farandole.jax"), {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}),
    "torch and scikit-learn": Runtime(
        ("torch", "sklearn"), ("torch._dynamo", "farandole.torch", "sklearn.datasets"), {}
    ),
    "several": Runtime(
        ("torch", "tensorflow", "jax"),
        ("farandole.torch", "farandole.tensorflow", "farandole.jax", "farandole.numpy"),
        {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"},
    ),
    "keras on torch": Runtime(("keras", "torch"), ("farandole.keras",), {"KERAS_BACKEND": "torch"}),
    "keras on jax": Runtime(("keras", "jax"), ("farandole.keras",), {"KERAS_BACKEND": "jax"}),
    "mxnet": Runtime(("mxnet",), ("farandole.mxnet",), {}),
}


class Nurseries:
    """The nursery of each runtime, which is started on first use."""

    def __init__(self) -> None:
        self._nurseries: dict[str, Nursery] = {}

    def __getitem__(self, runtime: str) -> Nursery:
        """Return a runtime's nursery, after its imports; skip the test if a package is not installed."""
        if runtime not in self._nurseries:
            frameworks, modules, variables = RUNTIMES[runtime]
            for framework in frameworks:
                if importlib.util.find_spec(framework) is None:
                    pytest.skip(f"{framework} is not installed")
            nursery = self._nurseries[runtime] = Nursery(modules, variables)
            first = nursery.fork({})
            first.send(int, ())
            first.receive(IMPORT_SECONDS)
            first.close()
        return self._nurseries[runtime]

    def close(self) -> None:
        """End all nurseries."""
        for nursery in self._nurseries.values():
            nursery.close()


@pytest.fixture(scope="session")
def nurseries() -> Iterator[Nurseries]:
    nurseries = Nurseries()
    yield nurseries
    nurseries.close()


@pytest.fixture(scope="session")
def digits_nursery(nurseries: Nurseries) -> Nursery:
    """Return the nursery of workers that have imported PyTorch and scikit-learn's data sets, but not used them."""
    return nurseries["torch and scikit-learn"]


@pytest.fixture(scope="session")
def tensorflow_nursery(nurseries: Nurseries) -> Nursery:
    """Return the nursery of workers that have imported TensorFlow, but not used it."""
    return nurseries["tensorflow"]


@pytest.fixture(scope="session")
def jax_nursery(nurseries: Nurseries) -> Nursery:
    """Return the nursery of workers that have imported JAX, but not used it."""
    return nurseries["jax"]


@pytest.fixture(
    scope="session", params=["tensorflow", "keras on torch", "keras on jax"], ids=["tensorflow", "torch", "jax"]
)
def keras_nursery(request: pytest.FixtureRequest, nurseries: Nurseries) -> Nursery:
    """Return the nursery of workers that have imported Keras, for each of its backends."""
    return nurseries[request.param]
