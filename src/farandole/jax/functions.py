"""The collectives on arrays, rendered from their declarations; functions.pyi has their signatures."""

from farandole.collectives.render import functions
from farandole.jax.arrays import Arrays

globals().update(functions(Arrays(), "farandole.jax"))
