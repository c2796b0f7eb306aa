"""The collectives on arrays, rendered from their declarations; functions.pyi has their signatures."""

from farandole.jax.arrays import Arrays
from farandole.worker.collectives.render import functions

_functions = functions(Arrays(), "farandole.jax")
globals().update(_functions)
__all__ = sorted(_functions)
