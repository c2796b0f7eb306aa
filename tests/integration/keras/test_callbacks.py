"""The callbacks and the elastic state, in a world of two processes, with each backend of Keras."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import Nursery, WorkerGone, World


def data(samples: int = 16) -> tuple[Any, Any]:
    import numpy as np

    x = np.sin(np.outer(np.arange(samples) + 1.0, [1.0, 2.0, 3.0])).astype("float32")
    return x, (x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype("float32")


def compiled(optimizer: Any) -> Any:
    """Return a model that is trained by an optimizer, other on each rank."""
    import keras

    import farandole.keras as hvd

    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(optimizer), "mse", metrics=["mae"])
    return model


def test_distributed_does_what_a_training_needs(world: World, tmp_path: Any) -> None:
    def run(folder: str) -> tuple[list[str], dict[str, list[float]], bytes]:
        import contextlib
        import io
        import os

        import keras
        import numpy as np

        import farandole.keras as hvd

        class Noting(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.seen: list[str] = []

            def on_train_begin(self, logs: Any = None) -> None:
                self.seen.append("begin")

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.seen.append(f"batch {batch}")

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.seen.append(f"epoch {epoch} {logs['loss']:.6f}")

        x, y = data()
        model = compiled(keras.optimizers.Adam(0.1))
        noting, path = Noting(), f"{folder}/{hvd.rank()}.keras"
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            history = model.fit(
                x + hvd.rank(),
                y,
                batch_size=8,
                epochs=2,
                verbose=2,
                validation_data=(x, y) if hvd.rank() == 1 else None,
                callbacks=[hvd.callbacks.Distributed(noting, keras.callbacks.ModelCheckpoint(path))],
            )
        assert bool(output.getvalue()) == os.path.exists(path) == (hvd.rank() == 0)
        if hvd.rank() == 0:
            losses = history.history["loss"]
            begun = ["begin", "batch 0", "batch 1", f"epoch 0 {losses[0]:.6f}"]
            assert noting.seen == [*begun, "batch 0", "batch 1", f"epoch 1 {losses[1]:.6f}"]
        weights = b"".join(np.ascontiguousarray(weight).tobytes() for weight in model.get_weights())
        assert not np.isnan(history.history["val_loss"]).any()
        return [], history.history, weights

    first, second = world.run(run, str(tmp_path))
    assert first == second


def test_a_stop_of_rank_0_alone_ends_the_training_of_all(world: World) -> None:
    """Asked for within the epoch, or at its end; all ranks have taken the same steps, and can train again."""

    def run() -> list[tuple[list[int], int]]:
        import keras

        import farandole.keras as hvd

        class Stop(keras.callbacks.Callback):
            def __init__(self, event: str) -> None:
                super().__init__()
                setattr(self, event, self.stop)

            def stop(self, number: int, logs: Any = None) -> None:
                if number == 1:
                    self.model.stop_training = True

        x, y = data()
        model = compiled(keras.optimizers.SGD(0.01))
        ended = []
        for callback in (Stop("on_train_batch_end"), Stop("on_epoch_end"), keras.callbacks.Callback()):
            history = model.fit(
                x, y, batch_size=4, epochs=3, verbose=0, callbacks=[hvd.callbacks.Distributed(callback)]
            )
            ended.append((history.epoch, int(model.optimizer.iterations)))
        return ended

    assert world.run(run) == [[([0], 4), ([0, 1], 12), ([0, 1, 2], 24)]] * 2


def test_stop_of_one_rank_before_distributed_ends_training_of_all(world: World) -> None:
    """Such as one of `EarlyStopping`, which sees the metrics of its rank there."""

    def run() -> list[int]:
        import keras

        import farandole.keras as hvd

        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if (epoch, hvd.rank()) == (1, 1):
                    self.model.stop_training = True

        x, y = data()
        model = compiled(keras.optimizers.SGD(0.01))
        history = model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=[Stop(), hvd.callbacks.Distributed()])
        return list(history.epoch)

    assert world.run(run) == [[0, 1]] * 2


def test_metrics_are_weighted_by_samples_if_that_is_asked_for(world: World) -> None:
    def run(weighted: bool) -> tuple[float, float, float]:
        import keras

        import farandole.keras as hvd

        # Rank 0 has 4 samples with an error of 1, rank 1 has 12 with one of 3.
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mae")
        samples, error = ((4, 1.0), (12, 3.0))[hvd.rank()]
        x = keras.ops.convert_to_numpy(keras.ops.ones((samples, 1)))
        validation = (x[:2], x[:2]) if hvd.rank() == 0 else (x[:6], 5 * x[:6])
        history = model.fit(
            x,
            error * x,
            batch_size=samples // 2,
            epochs=2,
            verbose=0,
            validation_data=validation,
            callbacks=[hvd.callbacks.MetricAverageCallback(weighted=weighted)],
        )
        return history.history["loss"], history.history["val_loss"]

    for weighted, loss, validation in ((False, 2.0, 3.0), (True, 2.5, 4.0)):
        for losses, val_losses in world.run(run, weighted):
            assert losses == pytest.approx([loss] * 2)
            assert val_losses == pytest.approx([validation] * 2)


def test_metrics_may_be_arrays(world: World) -> None:
    """Such as a score of each class."""

    def run() -> list[float]:
        import keras
        import numpy as np

        import farandole.keras as hvd

        # Of the two classes, rank 0 has only the first, and rank 1 only the second; the model always finds the first.
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2, kernel_initializer="zeros")])
        scores = keras.metrics.F1Score(average=None, threshold=0.5, name="scores")
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", metrics=[scores])
        model.layers[0].bias.assign([1.0, 0.0])
        y = np.eye(2, dtype="float32")[[hvd.rank()] * 4]
        callbacks = [hvd.callbacks.MetricAverageCallback()]
        history = model.fit(y, y, epochs=1, verbose=0, callbacks=callbacks)
        return list(history.history["scores"][0])

    for scores in world.run(run):
        assert scores == pytest.approx([0.5, 0.0])


def test_learning_rates_and_the_momentum_that_changes_with_them(world: World) -> None:
    def run() -> tuple[list[float], ...]:
        import keras

        import farandole.keras as hvd

        def rates_of(callback: Any, epochs: int, optimizer: Any) -> list[float]:
            seen: list[float] = []

            class Noting(keras.callbacks.Callback):
                def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                    seen.append(float(self.model.optimizer.learning_rate.numpy()))

            x, y = data()
            model = compiled(optimizer)
            history = model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[callback, Noting()])
            assert history.history["lr"] == pytest.approx(seen[1::2])
            return seen

        callbacks = hvd.callbacks
        adam = keras.optimizers.Adam
        warm = rates_of(callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1), 3, adam(0.4))
        steps = rates_of(callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=1), 3, adam(0.4))

        ramp = callbacks.LearningRateScheduleCallback(0.4, lambda epoch: 1 + epoch, end_epoch=2, staircase=False)
        batches = rates_of(ramp, 3, adam(0.4))

        def places_of(falling: Any) -> list[float]:
            # One weight, whose gradient is always 1: without a change of the rate, the second step were longer by half.
            model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
            model.set_weights([keras.ops.convert_to_numpy(keras.ops.ones((1, 1)))])
            sgd = keras.optimizers.SGD(1.0, momentum=0.5)
            model.compile(hvd.DistributedOptimizer(sgd), lambda target, found: keras.ops.mean(found - target))
            x = keras.ops.convert_to_numpy(keras.ops.ones((2, 1)))
            places: list[float] = []

            class Place(keras.callbacks.Callback):
                def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                    places.append(float(self.model.get_weights()[0][0, 0]))

            model.fit(x, x, batch_size=2, epochs=2, verbose=0, callbacks=[falling, Place()])
            return places

        places = places_of(callbacks.LearningRateScheduleCallback(1.0, 0.1))
        kept = places_of(callbacks.LearningRateScheduleCallback(1.0, 0.1, momentum_correction=False))
        return warm, steps, batches, places, kept

    for warm, steps, batches, places, kept in world.run(run):
        assert warm == pytest.approx([0.25, 0.3, 0.35, 0.4, 0.4, 0.4])
        assert steps == pytest.approx([0.4, 0.4, 0.4, 0.4, 0.2, 0.2])
        # Epochs with a fraction: 0, 0.5, 1 and 1.5; the rate then stays.
        assert batches == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0, 1.0])
        # 1, then half of that in terms of the new rate, and the new rate itself: 0.05 + 0.1.
        assert places == pytest.approx([0.0, -0.15])
        # Half of the first step as it was, and the new rate: 0.5 + 0.1.
        assert kept == pytest.approx([0.0, -0.6])


def test_an_elastic_state_is_synced_committed_and_restored(world: World, tmp_path: Any) -> None:
    def run(folder: str) -> None:
        import os

        import keras
        import numpy as np

        import farandole.keras as hvd

        x, y = data()
        model = compiled(keras.optimizers.Adam(0.1))
        model.optimizer.build(model.trainable_variables)
        state = hvd.elastic.KerasState(model, batch=20 + hvd.rank(), epoch=10 + hvd.rank())
        state.sync()
        assert (state.batch, state.epoch) == (20, 10)
        synced = model.get_weights()
        assert len({weight.tobytes() for weight in hvd.allgather_object(synced[0])}) == 1
        model.set_weights([weight + 1 for weight in synced])
        state.batch = 21
        state.restore()
        for mine, theirs in zip(model.get_weights(), synced, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert state.batch == 20

        committed: list[Any] = []
        commit = state.commit

        def note() -> None:
            commit()
            committed.append((state.batch, state.epoch, model.get_weights()[0].copy()))

        state.commit = note
        state.batch = 0
        elastic = hvd.elastic
        callbacks = [
            elastic.UpdateBatchStateCallback(state),
            elastic.UpdateEpochStateCallback(state),
            elastic.CommitStateCallback(state, batches_per_commit=3),
        ]
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
        assert [(batch, epoch) for batch, epoch, _ in committed] == [(2, 10), (0, 11), (1, 11), (0, 12)]
        last = model.get_weights()[0].copy()
        np.testing.assert_array_equal(committed[-1][2], last)
        model.fit(x, y, batch_size=4, verbose=0)
        state.restore()
        np.testing.assert_array_equal(model.get_weights()[0], last)

        best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
        with pytest.raises(ValueError, match="set its filepath"):
            model.fit(x, y, verbose=0, callbacks=[best])
        os.mkdir(f"{folder}/{hvd.rank()}")  # Older versions of Keras write more beside the file.
        best.filepath = f"{folder}/{hvd.rank()}/best.keras"
        model.fit(x, y, verbose=0, callbacks=[best])
        assert keras.models.load_model(best.filepath) is not None

    world.run(run, str(tmp_path))


def test_a_step_in_a_reset_callback_is_the_worker_s_own(world: World) -> None:
    def run() -> list[int]:
        import keras

        import farandole.keras as hvd

        x, y = data()
        model = compiled(keras.optimizers.Adam(0.1))

        def steps() -> int:
            before = hvd.stats()["operations"]["allreduce"]["requests"]
            model.fit(x, y, batch_size=8, verbose=0)
            return int(hvd.stats()["operations"]["allreduce"]["requests"] - before)

        sent = [steps()]
        state = hvd.elastic.KerasState(model)
        if hvd.rank() == 0:
            state.register_reset_callbacks([lambda: sent.append(steps())])
            state.on_reset()  # The other rank takes no step now.
        else:
            sent.append(0)
        state.sync()
        sent.append(steps())
        weights = model.get_weights()[0].tobytes()
        assert len(set(hvd.allgather_object(weights))) == 1
        return sent

    assert world.run(run) == [[4, 0, 4]] * 2


def test_shards_of_arrays_and_datasets(world: World) -> None:
    def run() -> None:
        import keras
        import numpy as np

        import farandole.keras as hvd

        class Batches(keras.utils.PyDataset):
            def __len__(self) -> int:
                return 5

            def __getitem__(self, index: int) -> Any:
                return np.full((2, 1), index), np.full((2, 1), -index)

        batches = hvd.shard(Batches())
        assert [int(batches[index][0][0, 0]) for index in range(len(batches))] == [hvd.rank(), 2 + hvd.rank()]
        arrays = {"a": np.arange(7), "b": (np.arange(7) * 10,)}
        own = hvd.shard(arrays)
        assert own["a"].tolist() == [hvd.rank() + 2 * turn for turn in range(3)]
        assert own["b"][0].tolist() == [10 * number for number in own["a"]]
        with pytest.raises(ValueError, match="DistributedSampler"):
            hvd.shard(iter([1, 2]))

    world.run(run)


def test_a_worker_that_dies_ends_the_fit_of_the_others(keras_nursery: Nursery) -> None:
    def run(compile_it: bool) -> str:
        import os

        import keras

        import farandole.keras as hvd
        from farandole.errors import WorkerLostError

        hvd.init()

        class Dying(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if batch == 2 and hvd.rank() == 1:
                    os._exit(1)

        x, y = data(64)
        model = compiled(keras.optimizers.Adam(0.1))
        with pytest.raises(WorkerLostError, match="rank 1 was lost") as lost:
            model.fit(x, y, batch_size=4, epochs=5, verbose=0, callbacks=[Dying()])
        assert lost.value.rank == 1
        return "lost"

    world = World(keras_nursery, 2)
    try:
        world.start(run, True)
        assert world.workers[0].receive() == "lost"
        with pytest.raises(WorkerGone):
            world.workers[1].receive()
    finally:
        world.broken = True
        world.close()
