"""The collectives on arrays, rendered from their declarations; functions.pyi has their signatures."""

from farandole.jax.arrays import Arrays
from farandole.worker.collectives.render import functions

globals().update(functions(Arrays(), "farandole.jax"))
