"""The cases, in the order in which they run: those that share a topology share its teams."""

from benchmarks.cases.allreduce import SIZES, TYPES
from benchmarks.cases.base import Case
from benchmarks.cases.between_hosts import HOSTS
from benchmarks.cases.collectives import COLLECTIVES
from benchmarks.cases.compression import COMPRESSION
from benchmarks.cases.gradients import GRADIENTS
from benchmarks.cases.jax import ALONE as JAX_ALONE
from benchmarks.cases.jax import GRADIENTS as JAX_GRADIENTS
from benchmarks.cases.jax import ONE as JAX_ONE
from benchmarks.cases.launching import LAUNCHING
from benchmarks.cases.small import LATENCY, MANY
from benchmarks.cases.startup import STARTUP
from benchmarks.cases.steps import STEPS
from benchmarks.cases.tensorflow import ALONES, FITS, MEMORY, OPS
from benchmarks.cases.tensorflow import GRADIENTS as TENSORFLOW_GRADIENTS

CASES: tuple[Case, ...] = (
    SIZES,
    TYPES,
    GRADIENTS,
    MANY,
    LATENCY,
    COLLECTIVES,
    HOSTS,
    STEPS,
    STARTUP,
    COMPRESSION,
    LAUNCHING,
    OPS,
    TENSORFLOW_GRADIENTS,
    FITS,
    ALONES,
    MEMORY,
    JAX_ONE,
    JAX_GRADIENTS,
    JAX_ALONE,
)
