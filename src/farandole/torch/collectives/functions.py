"""The collectives on tensors, rendered from their declarations; functions.pyi has their signatures."""

from farandole.collectives.render import functions
from farandole.torch.collectives.tensors import FRONT

globals().update(functions(FRONT, "farandole.torch"))
