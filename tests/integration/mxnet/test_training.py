"""Trainings with gluon and the Module API on two workers: what they do is what one would do with all samples."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import World

STEPS = 6


def data() -> tuple[Any, Any]:
    """Return samples and targets of a small task, for all workers together."""
    import numpy as np

    x = np.sin(np.outer(np.arange(32) + 1.0, [1.0, 2.0, 3.0])).astype("float32")
    return x, (x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype("float32")


def network(seed: int) -> Any:
    """Return a small network, whose parameters get their shapes from the first batch."""
    import mxnet as mx

    mx.random.seed(seed)
    net = mx.gluon.nn.HybridSequential(prefix="")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(4, activation="tanh"), mx.gluon.nn.Dense(1))
    net.initialize(mx.init.Xavier(), force_reinit=True)
    net.hybridize()
    return net


def rows(step: int, rank: int, size: int) -> list[int]:
    """Return which samples a worker has in a step of 8: every `size`-th one."""
    return [(step * 8 + row) % 32 for row in range(rank, 8, size)]


def train(net: Any, trainer: Any, rank: int, size: int) -> list[Any]:
    """Take some steps, and return the parameters."""
    import mxnet as mx

    x, y = data()
    loss_of = mx.gluon.loss.L2Loss()
    for step in range(STEPS):
        mine = rows(step, rank, size)
        with mx.autograd.record():
            loss = loss_of(net(mx.nd.array(x[mine])), mx.nd.array(y[mine]))
        loss.backward()
        trainer.step(len(mine))
    return [each.data().asnumpy() for each in net.collect_params().values()]


def alone(optimizer: str) -> list[Any]:
    """Return the parameters of a training by one worker with all samples, which begins with rank 0's parameters."""
    import mxnet as mx

    net = network(0)
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.05}, kvstore=None)
    return train(net, trainer, 0, 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_groups": 2},
        {"gradient_predivide_factor": 2.0},
        {"prefix": "second."},
        {"compression": "fp16"},
        {"compression": "int8"},
        {"compression": "int8", "num_groups": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_gluons_trainer(world: World, optimizer: str, options: dict[str, Any]) -> None:
    def body() -> list[Any]:
        import numpy as np

        import farandole.mxnet as hvd

        given = dict(options)
        if "compression" in given:
            given["compression"] = getattr(hvd.Compression, given["compression"])
        net = network(hvd.rank())
        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        trainer = hvd.DistributedTrainer(net.collect_params(), optimizer, {"learning_rate": 0.05}, **given)
        parameters = train(net, trainer, hvd.rank(), hvd.size())
        if optimizer == "sgd" or "compression" not in given:  # Adam makes much of little gradients' differences.
            tolerance = 2e-2 if "compression" in given else 1e-5
            for one, other in zip(parameters, alone(optimizer), strict=True):
                np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        return parameters

    _check_same(world.run(body))


def test_gradients_are_sums_between_allreduce_grads_and_update(world: World) -> None:
    def body() -> None:
        import mxnet as mx
        import numpy as np

        import farandole.mxnet as hvd

        weight = mx.gluon.Parameter("weight", shape=(3,))
        weight.initialize(mx.init.Zero())
        trainer = hvd.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0})
        with mx.autograd.record():
            loss = (weight.data() * (hvd.rank() + 1)).sum()
        loss.backward()
        trainer.allreduce_grads()
        np.testing.assert_array_equal(weight.grad().asnumpy(), [3.0] * 3)
        trainer.update(2)
        np.testing.assert_array_equal(weight.data().asnumpy(), [-0.75] * 3)

    world.run(body)


def test_a_trainer_of_a_process_set_reduces_among_its_ranks_only(world: World) -> None:
    def body() -> list[float]:
        import mxnet as mx

        import farandole.mxnet as hvd

        alone = hvd.add_process_set([1])
        try:
            weight = mx.gluon.Parameter("weight", shape=(1,))
            weight.initialize(mx.init.Zero())
            trainer = hvd.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0}, process_set=alone)
            with mx.autograd.record():
                loss = (weight.data() * (hvd.rank() + 1)).sum()
            loss.backward()
            trainer.step(1)
            return weight.data().asnumpy().tolist()
        finally:
            hvd.remove_process_set(alone)

    assert world.run(body) == [[-1.0], [-2.0]]


def test_module_with_a_distributed_optimizer(world: World) -> None:
    def body(several: bool) -> list[Any]:
        import mxnet as mx

        import farandole.mxnet as hvd

        rank, size = (hvd.rank(), hvd.size()) if several else (0, 1)
        x, y = data()
        symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="first")
        symbol = mx.sym.FullyConnected(mx.sym.Activation(symbol, act_type="tanh"), num_hidden=1, name="second")
        symbol = mx.sym.LinearRegressionOutput(symbol, mx.sym.Variable("label"), name="loss")
        module = mx.mod.Module(symbol, data_names=["data"], label_names=["label"])
        module.bind([("data", (8 // size, 3))], [("label", (8 // size, 1))])
        mx.random.seed(rank)
        module.init_params(mx.init.Xavier())
        optimizer = mx.optimizer.create("sgd", learning_rate=0.05, momentum=0.9, rescale_grad=size / 8)
        if several:
            values, more = module.get_params()
            hvd.broadcast_parameters(values)
            hvd.broadcast_parameters(more)
            module.set_params(values, more)
            optimizer = hvd.DistributedOptimizer(optimizer)
            assert isinstance(optimizer, (mx.optimizer.SGD, hvd.DistributedOptimizer))
        module.init_optimizer(kvstore=None, optimizer=optimizer)
        for step in range(STEPS):
            mine = rows(step, rank, size)
            module.forward_backward(mx.io.DataBatch([mx.nd.array(x[mine])], [mx.nd.array(y[mine])]))
            module.update()
        return [array.asnumpy() for _, array in sorted(module.get_params()[0].items())]

    def both() -> list[Any]:
        import numpy as np

        parameters = body(True)
        for one, other in zip(parameters, body(False), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        return parameters

    _check_same(world.run(both))


def test_a_pickled_optimizer_is_the_plain_one(world: World) -> None:
    def body() -> None:
        import pickle

        import mxnet as mx

        import farandole.mxnet as hvd

        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("adam", learning_rate=0.3))
        loaded = pickle.loads(pickle.dumps(optimizer))
        assert type(loaded) is mx.optimizer.Adam
        assert loaded.lr == 0.3

    world.run(body)


def test_wrong_optimizers_are_told(world: World) -> None:
    def body() -> list[str]:
        import warnings

        import mxnet as mx

        import farandole.mxnet as hvd

        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
        told = []
        for wrong in (
            lambda: hvd.DistributedOptimizer("sgd"),
            lambda: hvd.DistributedOptimizer(optimizer),
            lambda: hvd.DistributedOptimizer(mx.optimizer.create("sgd"), num_groups=-1),
            lambda: hvd.DistributedOptimizer(mx.optimizer.create("sgd"), gradient_predivide_factor=0),
            lambda: hvd.DistributedOptimizer(mx.optimizer.create("sgd"), compression="fp16"),
        ):
            try:
                wrong()
            except ValueError as error:
                told.append(str(error))
        weight = mx.gluon.Parameter("weight", shape=(3,))
        weight.initialize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer = hvd.DistributedTrainer([weight], optimizer)
        assert type(trainer.optimizer) is mx.optimizer.SGD
        told.append(str(caught[-1].message))
        return told

    for told in world.run(body):
        assert len(told) == 6
        assert "wraps an mx.optimizer.Optimizer, not a str" in told[0]
        assert "is a DistributedOptimizer already" in told[1]
        assert "num_groups must be a whole number, 0 or more, not -1" in told[2]
        assert "gradient_predivide_factor must be a number above 0, not 0" in told[3]
        assert "compression must be one of hvd.Compression" in told[4]
        assert "takes the plain optimizer out" in told[5]


# --- parameters --------------------------------------------------------------------------------------------------


def test_parameters_become_the_roots_also_those_that_are_initialized_later(world: World) -> None:
    def body() -> tuple[list[Any], list[Any]]:
        import mxnet as mx

        import farandole.mxnet as hvd

        early, late = network(hvd.rank()), network(10 + hvd.rank())
        batch = mx.nd.ones((2, 3))
        early(batch)
        hvd.broadcast_parameters(early.collect_params(), root_rank=1)
        hvd.broadcast_parameters(late.collect_params(), root_rank=1, prefix="late.")
        with mx.autograd.record():
            late(batch).backward()
        values = [[each.data().asnumpy() for each in net.collect_params().values()] for net in (early, late)]
        assert all("_init_impl" not in vars(each) for each in late.collect_params().values())
        return values[0], values[1]

    (early0, late0), (early1, late1) = world.run(body)
    _check_same([early0, early1])
    _check_same([late0, late1])
    assert len(late0) == 4


def test_weights_that_inference_has_laid_out_otherwise_are_sent_right(world: World) -> None:
    def body() -> Any:
        import mxnet as mx
        import numpy as np

        import farandole.mxnet as hvd

        mx.random.seed(hvd.rank())
        layer = mx.gluon.nn.Conv2D(16, 3, in_channels=8)
        layer.initialize()
        before = layer.weight.data().asnumpy()
        layer(mx.nd.ones((2, 8, 16, 16))).wait_to_read()
        hvd.broadcast_parameters(layer.collect_params())
        after = layer.weight.data().asnumpy()
        if hvd.rank() == 0:
            np.testing.assert_array_equal(after, before)
        return [after]

    _check_same(world.run(body))


def test_other_parameters_on_one_rank_are_told_on_all(world: World) -> None:
    def body() -> str:
        import mxnet as mx

        import farandole.mxnet as hvd

        arrays = {"a": mx.nd.ones((2,)), "b": mx.nd.ones((3 + hvd.rank(),))}
        try:
            hvd.broadcast_parameters(arrays)
        except ValueError as error:
            return str(error)
        return ""

    for told in world.run(body):
        assert "rank 1 has 2 parameters, and rank 0 has 2; they differ from number 1 on: b float32[4] on rank 1" in told


def test_other_names_on_one_rank_are_told_on_all(world: World) -> None:
    def body() -> str:
        import mxnet as mx

        import farandole.mxnet as hvd

        try:
            hvd.broadcast_parameters({"a": mx.nd.ones((2,)), "b" if hvd.rank() == 0 else "c": mx.nd.ones((2,))})
        except ValueError as error:
            return str(error)
        return ""

    for told in world.run(body):
        assert "number 1 on: c float32[2] on rank 1, b float32[2] on rank 0" in told


def _check_same(ranks: list[list[Any]]) -> None:
    """Check that all ranks have the same bits."""
    first, *others = ([array.tobytes() for array in arrays] for arrays in ranks)
    assert others
    assert all(other == first for other in others)
