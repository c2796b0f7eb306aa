"""The collectives that users call, rendered from their declarations; functions.pyi has their signatures."""

from farandole.keras.collectives import KerasDialect, runner
from farandole.worker.collectives.render import functions_of

_functions = functions_of(KerasDialect(), runner, "farandole.keras")
globals().update(_functions)
__all__ = sorted(_functions)
