"""Write the stubs of the front ends' collectives, from their declarations. Run it after a change of a declaration.

A test compares what it would write with what is there.
"""

from __future__ import annotations

from pathlib import Path

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
        text = stub(JaxArrays(), "jax.Array", "Any", "import jax")
        jax = {package / "jax" / "functions.pyi": text}

    numpy = stub(Arrays(), "NDArray[Any]", "ArrayLike", "from numpy.typing import ArrayLike, NDArray")
    torch = stub(FRONT, "torch.Tensor", "torch.Tensor", "import torch")
    return {
        package / "numpy" / "functions.pyi": numpy,
        package / "torch" / "collectives" / "functions.pyi": torch,
        package / "torch" / "wrapped_optimizers.pyi": optimizer_stub(),
        **jax,
    }


if __name__ == "__main__":
    for file, text in stubs().items():
        file.write_text(text)
