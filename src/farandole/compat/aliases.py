"""Makes `import horovod.X` return farandole's modules themselves, not copies of them.

`horovod.torch` and `farandole.torch` are one object, so they share one world, one `ProcessSet` and one exception class,
and an object pickled under one name can be unpickled under the other. A finder at the front of `sys.meta_path` loads
farandole's module and also enters it in `sys.modules` under Horovod's name. Child processes that import `horovod`
install the finder too; forked ones already have it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from farandole.compat import conflict
from farandole.errors import NotInitializedError

# Horovod's modules and farandole's. Modules below a listed package are searched below farandole's.
HOMES = {
    "horovod.keras": "farandole.keras",
    "horovod.mxnet": "farandole.mxnet",
    "horovod.mxnet.functions": "farandole.worker.collectives.objects",
    "horovod.mxnet.mpi_ops": "farandole.mxnet",
    "horovod.tensorflow": "farandole.tensorflow",
    "horovod.tensorflow.functions": "farandole.compat.tensorflow.functions",
    "horovod.tensorflow.keras": "farandole.keras",
    "horovod.tensorflow.mpi_ops": "farandole.compat.tensorflow.mpi_ops",
    "horovod.tensorflow.util": "farandole.compat.tensorflow.util",
    "horovod.torch": "farandole.torch",
    "horovod.torch.mpi_ops": "farandole.compat.mpi_ops",
    "horovod.torch.functions": "farandole.compat.functions",
    "horovod.common.basics": "farandole.compat.basics",
    "horovod.common.elastic": "farandole.compat.elastic",
    "horovod.common.exceptions": "farandole.compat.exceptions",
    "horovod.common.process_sets": "farandole.compat.process_sets",
    "horovod.common.util": "farandole.compat.support",
    "horovod.data": "farandole.compat.data",
    "horovod.ray": "farandole.compat.ray",
    "horovod.runner": "farandole.compat.runner",
    "horovod.runner.common.util.config_parser": "farandole.compat.runner.config_parser",
    "horovod.runner.common.util.env": "farandole.compat.runner.env",
    "horovod.runner.common.util.hosts": "farandole.compat.runner.hosts",
    "horovod.runner.common.util.safe_shell_exec": "farandole.compat.runner.safe_shell_exec",
    "horovod.runner.common.util.settings": "farandole.compat.runner.settings",
    "horovod.runner.common.util.tiny_shell_exec": "farandole.compat.runner.tiny_shell_exec",
    "horovod.runner.util.lsf": "farandole.compat.runner.lsf",
    "horovod.runner.util.network": "farandole.compat.runner.network",
    "horovod.spark": "farandole.compat.spark",
}

_ESTIMATORS = (
    "is not there: the estimators are horovod.spark.torch.TorchEstimator, horovod.spark.keras.KerasEstimator and "
    "horovod.spark.lightning.TorchEstimator"
)
_DATA_SERVICE = (
    "is not there: run python -m horovod.tensorflow.data.compute_worker under horovodrun, on hosts that the training "
    "can reach. The estimator is horovod.spark.keras.KerasEstimator"
)
_PREPARED = "is not there: horovod.spark.common.util.prepare_data removes its files when it ends"
_INSIDE = "is not there: it was the inside of Horovod's launcher, and farandole's works otherwise"
_AGGREGATION = "is not there: pass backward_passes_per_step to DistributedOptimizer"

# Modules that users may look for, and why they do not exist; also for all submodules.
MISSING = {
    "horovod._keras": "is not there: it was the inside of Horovod's Keras. horovod.keras is there",
    "horovod.tensorflow.gradient_aggregation": _AGGREGATION,
    "horovod.tensorflow.gradient_aggregation_eager": _AGGREGATION,
    "horovod.spark.common.cache": _PREPARED,
    "horovod.spark.tensorflow": _DATA_SERVICE,
    "horovod.spark.data_loaders": _ESTIMATORS,
    "horovod.spark.driver": _INSIDE,
    "horovod.spark.gloo_run": _INSIDE,
    "horovod.spark.mpi_run": _INSIDE,
    "horovod.spark.runner": _INSIDE,
    "horovod.runner.common.service": _INSIDE,
    "horovod.runner.common.util.host_hash": _INSIDE,
    "horovod.runner.common.util.secret": _INSIDE,
    "horovod.runner.common.util.timeout": _INSIDE,
    "horovod.runner.driver": _INSIDE,
    "horovod.runner.elastic": _INSIDE,
    "horovod.runner.http": _INSIDE,
    "horovod.runner.run_task": _INSIDE,
    "horovod.runner.task": _INSIDE,
    "horovod.runner.task_fn": _INSIDE,
    "horovod.runner.util.threads": _INSIDE,
}

# Modules that scripts reach as attributes of a package without importing them.
_ATTRIBUTES = {"horovod.torch": ("mpi_ops", "functions"), "horovod.tensorflow": ("mpi_ops", "util")}

# Modules with the names of a package of Horovod's that farandole's lacks.
_NAMES = {
    "horovod.keras": "farandole.compat.keras_names",
    "horovod.tensorflow": "farandole.compat.tensorflow.names",
    "horovod.tensorflow.keras": "farandole.compat.keras_names",
}


def install() -> None:
    """Provide Horovod's modules in this process.

    Raises:
        ImportError: PyPI's horovod is installed as well.
    """
    conflict.check()
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        # First: for `horovod.torch.optimizer` the usual finders would look into farandole.torch's folder, and load
        # the file there a second time.
        sys.meta_path.insert(0, Finder())
    # Libraries look for the sentence, such as PyTorch Ignite.
    NotInitializedError.product = "Horovod"


def attribute(name: str) -> Any:
    """Return an attribute of the package `horovod` that is not a submodule.

    Raises:
        AttributeError: there is no such attribute.
    """
    if name == "runner":
        return importlib.import_module("horovod.runner")
    if name == "run":
        return importlib.import_module("horovod.runner").run
    where = (
        ": functions for training, such as init(), are in the module of your framework, which is horovod.torch, "
        ".tensorflow, .keras, .tensorflow.keras or .mxnet: write, for example, `import horovod.torch as hvd`"
    )
    raise AttributeError(f"module 'horovod' has no attribute {name!r}{'' if name.startswith('_') else where}")


def home_of(name: str) -> str | None:
    """Return the name of farandole's module for one of Horovod's, or None if there is none.

    Example:
        >>> home_of("horovod.torch.compression")
        'farandole.torch.compression'
    """
    package = name
    while package:
        if package in HOMES:
            return HOMES[package] + name[len(package) :]
        package = package.rpartition(".")[0]
    return None


def _spec_of(home: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(home)
    except ModuleNotFoundError as error:
        if error.name is None or not home.startswith(f"{error.name}."):
            raise
        return None  # The package is missing that it would be in.


class Finder:
    """Finds Horovod's modules among farandole's."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of one of Horovod's modules; None for all others."""
        if not name.startswith("horovod."):
            return None
        for missing, why in MISSING.items():
            if f"{name}.".startswith(f"{missing}."):
                return ModuleSpec(name, _Missing(f"{missing} {why}."))
        if any(home.startswith(f"{name}.") for home in HOMES) and name not in HOMES:
            return ModuleSpec(name, _Folder(), is_package=True)
        home = home_of(name)
        spec = None if home is None else _spec_of(home)
        if home is None or spec is None:
            return None
        # With `python -m`, the origin is what the program finds as its own name.
        is_package = spec.submodule_search_locations is not None
        return ModuleSpec(name, _Alias(home), origin=spec.origin, is_package=is_package)


class _Folder(Loader):
    """Loads a package that contains only submodules."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Missing(_Folder):
    """Raises ImportError with the reason why a module does not exist."""

    def __init__(self, why: str) -> None:
        self._why = why

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(self._why, name=module.__name__)


class _Alias(_Folder):
    """Loads farandole's module under Horovod's name."""

    def __init__(self, home: str) -> None:
        self._home = home

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what stands here afterwards for the module that it has loaded.
        ours = sys.modules[module.__name__] = importlib.import_module(self._home)
        for attribute in _ATTRIBUTES.get(module.__name__, ()):
            importlib.import_module(f"{module.__name__}.{attribute}")
        if names := _NAMES.get(module.__name__):
            theirs = importlib.import_module(names)
            vars(ours).update((name, getattr(theirs, name)) for name in theirs.__all__)

    def get_code(self, name: str) -> CodeType | None:
        """Return the code for `python -m horovod.X`."""
        spec = importlib.util.find_spec(self._home)
        code: CodeType | None = None if spec is None else spec.loader.get_code(self._home)  # type: ignore[union-attr]
        return code
