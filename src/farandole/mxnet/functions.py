"""The collectives that users call, rendered from their declarations; functions.pyi has their signatures.

Functions whose result has a known shape return at once: MXNet's engine computes their results in its order, and code
that uses a result waits for it, as with any operation of MXNet. Ranks' calls match by name, and unnamed ones by the
order in which the program makes them.
"""

from farandole.mxnet.collectives import FRONT, runner
from farandole.worker.collectives.render import functions_of

_functions = functions_of(FRONT, runner, "farandole.mxnet")
globals().update(_functions)
__all__ = sorted(_functions)
