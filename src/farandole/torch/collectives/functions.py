"""The collectives on tensors, rendered from their declarations; functions.pyi has their signatures."""

from farandole.torch.collectives.tensors import FRONT
from farandole.worker.collectives.render import functions

_functions = functions(FRONT, "farandole.torch")
globals().update(_functions)
__all__ = sorted(_functions)
