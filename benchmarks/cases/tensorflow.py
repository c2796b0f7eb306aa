"""The cases of TensorFlow: one op, many, `model.fit`, and what farandole costs a worker that is alone."""

from __future__ import annotations

from typing import Any

from benchmarks.cases.base import KB, MB, Case, Ratio
from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.keras_training import DIGITS, LARGE
from benchmarks.scope import Scope
from benchmarks.topology import Topology

GROUP, DOCUMENT = "tensorflow", "contributing/benchmarks/tensorflow.md"
OURS, PEER = "farandole_tensorflow", "multi_worker"
STRATEGY = "MultiWorkerMirroredStrategy"
NUMPY, FUNCTION, EAGER, CHAIN = "farandole.numpy", "farandole", "farandole, eager", "farandole, in a chain"
ADDITION = "tf.function that adds 1"
GROUPED = "farandole, one grouped op"
ALONE, PLAIN, FIT = "one process alone", "no communication", "DistributedOptimizer"
AGAIN = "no communication, once more"
_TWO = Topology(1, 2)
_BATCHES = {DIGITS: (32,), LARGE: (128, 512)}


# --- ops -----------------------------------------------------------------------------------------------------------


def _measure_ops(conductor: Conductor, scope: Scope) -> list[Row]:
    sizes = scope.choose_sizes((4, KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB), quick=(4, 64 * KB, 4 * MB))
    works = ((NUMPY, "numpy"), (EAGER, "eager"), (CHAIN, "chain"), (ADDITION, "addition"), (FUNCTION, "function"))
    rows = []
    for size in sizes:
        contenders = [Contender(label, OURS, work, {"bytes": size}) for label, work in works]
        contenders.append(Contender(STRATEGY, PEER, "function", {"bytes": size}))
        rows.append(conductor.measure(_TWO, contenders, {"bytes": size}, bytes_held=2 * size))
    return rows


def _measure_gradients(conductor: Conductor, scope: Scope) -> list[Row]:
    contenders = [
        Contender(FUNCTION, OURS, "gradients", {"grouped": False}),
        Contender(GROUPED, OURS, "gradients", {"grouped": True}),
        Contender(STRATEGY, PEER, "gradients"),
    ]
    return [conductor.measure(_TWO, contenders, {"world": 2})]


# --- trainings -----------------------------------------------------------------------------------------------------


def _trainings(scope: Scope) -> list[dict[str, Any]]:
    batches = {model: some[:1] if scope.quick else some for model, some in _BATCHES.items()}
    return [{"model": model, "batch": batch} for model, some in batches.items() for batch in some]


def _fit(label: str, training: dict[str, Any], **how: bool) -> Contender:
    return Contender(label, OURS, "fit", {**training, **how})


def _measure_fit(conductor: Conductor, scope: Scope) -> list[Row]:
    rows = []
    for training in _trainings(scope):
        contenders = [
            _fit(ALONE, training, distributed=False, everywhere=False),
            _fit(PLAIN, training, distributed=False),
            _fit(FIT, training, distributed=True),
            Contender(STRATEGY, PEER, "fit", training),
        ]
        step = conductor.measure(_TWO, contenders, {**training, "result": "step"})
        rows += [step, _visible(step, training)]
    return rows


def _visible(step: Row, training: dict[str, Any]) -> Row:
    """Return, as notes, the share of a step that exceeds the step of the same workers without communication."""
    row = Row({**training, "result": "visible share"})
    alone = step.median(PLAIN)
    for label in (FIT, STRATEGY):
        together = step.median(label)
        if alone and together:
            row.notes[label] = f"{max(0.0, 1 - alone / together):.1%}"
    return row


def _measure_alone(conductor: Conductor, scope: Scope) -> list[Row]:
    return [
        conductor.measure(
            Topology(1, 1),
            [
                _fit(PLAIN, training, distributed=False),
                _fit(FIT, training, distributed=True),
                _fit(AGAIN, training, distributed=False),
            ],
            training,
        )
        for training in _trainings(scope)
    ]


def _measure_memory(conductor: Conductor, scope: Scope) -> list[Row]:
    training = {"model": LARGE, "batch": _BATCHES[LARGE][0]}
    row = Row(training)
    ways: tuple[tuple[str, str, dict[str, bool]], ...] = (
        (PLAIN, OURS, {"distributed": False}),
        (FIT, OURS, {"distributed": True}),
        (STRATEGY, PEER, {}),
    )
    for label, peer, how in ways[:2] if scope.quick else ways:
        conductor.dismiss(_TWO)  # A process may keep memory that it had once.
        peaks = conductor.ask(peer, _TWO, "fit_memory", {**training, **how})
        row.notes[label] = f"{max(peaks) / MB:.0f} MB" if peaks else "failed"
    conductor.dismiss(_TWO)
    return [row]


OPS = Case(
    letter="tf-ops",
    title="one allreduce of float32 in TensorFlow, 2 workers",
    keys=("bytes",),
    run=_measure_ops,
    ratios=(
        Ratio("strategy / farandole", (STRATEGY,), FUNCTION),
        Ratio("chain / numpy", (CHAIN,), NUMPY),
    ),
    group=GROUP,
    document=DOCUMENT,
)
GRADIENTS = Case(
    letter="tf-gradients",
    title="161 tensors of ResNet-50's shapes (102 MB of float32) in one tf.function, 2 workers",
    keys=("world",),
    run=_measure_gradients,
    ratios=(Ratio("strategy / farandole", (STRATEGY,), FUNCTION),),
    group=GROUP,
    document=DOCUMENT,
)
FITS = Case(
    letter="tf-fit",
    title="a step of model.fit, 2 workers with one thread each, by a worker's batch",
    keys=("model", "batch", "result"),
    run=_measure_fit,
    ratios=(Ratio("strategy / DistributedOptimizer", (STRATEGY,), FIT),),
    group=GROUP,
    document=DOCUMENT,
)
ALONES = Case(
    letter="tf-alone",
    title="a step of model.fit of one worker that is alone",
    keys=("model", "batch"),
    run=_measure_alone,
    # The second ratio compares two equal trainings: it shows the noise.
    ratios=(Ratio("DistributedOptimizer / none", (FIT,), PLAIN), Ratio("none / none", (AGAIN,), PLAIN)),
    group=GROUP,
    document=DOCUMENT,
)
MEMORY = Case(
    letter="tf-memory",
    title="the most memory that a worker has in model.fit, 2 workers",
    keys=("model", "batch"),
    run=_measure_memory,
    group=GROUP,
    document=DOCUMENT,
)
