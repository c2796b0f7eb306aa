"""The collectives that users call, rendered from their declarations; functions.pyi has their signatures."""

from farandole.tensorflow.collectives import DIALECT, runner
from farandole.worker.collectives.render import functions_of

_functions = functions_of(DIALECT, runner, "farandole.tensorflow")
globals().update(_functions)
__all__ = sorted(_functions)
