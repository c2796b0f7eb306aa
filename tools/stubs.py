"""Write the stubs of the front ends' collectives, from their declarations. Run it after a change of a declaration.

A test compares its output with the present files.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from tools.optimizer_stub import optimizer_stub

from farandole.worker.collectives.render import stub

ROOT = Path(__file__).resolve().parents[1]


def stubs() -> dict[Path, str]:
    """Return the text of each stub, by its file."""
    package = ROOT / "src" / "farandole"
    from farandole.numpy.arrays import Arrays
    from farandole.torch.collectives.tensors import FRONT

    try:
        from farandole.jax.arrays import Arrays as JaxArrays
    except ImportError:  # It needs a newer Python than the others.
        jax = {}
    else:
        text = stub(JaxArrays(), "jax.Array", "Any", "import jax", "farandole.jax.trees.Tree")
        jax = {package / "jax" / "functions.pyi": text}

    numpy = stub(Arrays(), "NDArray[Any]", "ArrayLike", "from numpy.typing import ArrayLike, NDArray")
    torch = stub(FRONT, "torch.Tensor", "torch.Tensor", "import torch")
    try:
        from farandole.tensorflow.collectives import DIALECT
    except ImportError:
        tensorflow = {}
    else:
        tensorflow = {package / "tensorflow" / "functions.pyi": stub(DIALECT, "Any", "Any")}
    try:
        from farandole.keras.collectives import KerasDialect
    except ImportError:
        keras = {}
    else:
        keras = {package / "keras" / "functions.pyi": stub(KerasDialect(), "Any", "Any")}
    return {
        package / "mxnet" / "functions.pyi": stub(
            _alone(package / "mxnet" / "dialect.py").MXNetDialect(),
            "mx.nd.NDArray",
            "mx.nd.NDArray",
            "import mxnet as mx",
        ),
        **keras,
        **tensorflow,
        package / "numpy" / "functions.pyi": numpy,
        package / "torch" / "collectives" / "functions.pyi": torch,
        package / "torch" / "wrapped_optimizers.pyi": optimizer_stub(),
        **jax,
    }


def _alone(file: Path) -> ModuleType:
    """Return a module of a package that cannot be imported in this environment."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    for file, text in stubs().items():
        file.write_text(text)
