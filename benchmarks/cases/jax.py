"""The cases of JAX: one collective of a compiled function, many, and what farandole costs a worker that is alone."""

from __future__ import annotations

from benchmarks.cases.base import KB, MB, Case, Figure, Ratio
from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.scope import Scope
from benchmarks.topology import Topology

GROUP, DOCUMENT = "jax", "contributing/benchmarks/jax.md"
OURS, PEER = "farandole_jax", "jax_gloo"
COMPILED, EAGER, ADDITION = "farandole", "farandole, eager", "jit that adds 1"
GLOO = "jax.distributed, gloo"
PLAIN, DISTRIBUTED = "optax", "hvd.distributed"
_TWO = Topology(1, 2)


def _measure_one(conductor: Conductor, scope: Scope) -> list[Row]:
    sizes = scope.choose_sizes((4, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB), quick=(4, 64 * KB, 4 * MB))
    rows = []
    for size in sizes:
        contenders = [
            Contender(EAGER, OURS, "eager", {"bytes": size}),
            Contender(ADDITION, OURS, "addition", {"bytes": size}),
            Contender(COMPILED, OURS, "compiled", {"bytes": size}),
            Contender(GLOO, PEER, "compiled", {"bytes": size}),
        ]
        rows.append(conductor.measure(_TWO, contenders, {"bytes": size}, bytes_held=2 * size))
    return rows


def _measure_gradients(conductor: Conductor, scope: Scope) -> list[Row]:
    contenders = [Contender(COMPILED, OURS, "gradients"), Contender(GLOO, PEER, "gradients")]
    return [conductor.measure(_TWO, contenders, {"world": 2})]


def _measure_alone(conductor: Conductor, scope: Scope) -> list[Row]:
    return [
        conductor.measure(
            Topology(1, 1),
            [
                Contender(PLAIN, OURS, "step", {"distributed": False, "batch": batch}),
                Contender(DISTRIBUTED, OURS, "step", {"distributed": True, "batch": batch}),
            ],
            {"batch": batch},
        )
        for batch in ((256,) if scope.quick else (256, 1024))
    ]


ONE = Case(
    letter="jax-one",
    title="one allreduce of float32 in a function that JAX compiles, 2 workers",
    keys=("bytes",),
    run=_measure_one,
    ratios=(Ratio("gloo / farandole", (GLOO,), COMPILED),),
    figure=Figure(),
    group=GROUP,
    document=DOCUMENT,
)
GRADIENTS = Case(
    letter="jax-gradients",
    title="161 arrays of ResNet-50's shapes (102 MB of float32) in one compiled function, 2 workers",
    keys=("world",),
    run=_measure_gradients,
    ratios=(Ratio("gloo / farandole", (GLOO,), COMPILED),),
    group=GROUP,
    document=DOCUMENT,
)
ALONE = Case(
    letter="jax-alone",
    title="a compiled step with optax of one worker that is alone (three layers of 512), by its batch",
    keys=("batch",),
    run=_measure_alone,
    ratios=(Ratio("hvd.distributed / optax", (DISTRIBUTED,), PLAIN),),
    group=GROUP,
    document=DOCUMENT,
)
