"""Scripts for TensorFlow 1, in the way that articles of 2017 to 2020 show, unchanged: `farandole run --tf1`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import drop_in
import pytest

OLD = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd
from tensorflow.python.platform import tf_logging
from tensorflow import gfile

tf.logging.set_verbosity(tf.logging.ERROR)
tf.app.flags.DEFINE_integer("steps", 160, "of all workers together")
FLAGS = tf.app.flags.FLAGS


def model(features, labels):
    with tf.variable_scope("model"):
        hidden = DENSE(features, 16)
        logits = DENSE(hidden, 2)
    loss = tf.losses.softmax_cross_entropy(tf.one_hot(labels, 2), logits)
    return tf.argmax(logits, 1), loss


def main(_):
    hvd.init()
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [None, 2])
    y = tf.placeholder(tf.int64, [None])
    predict, loss = model(x, y)
    accuracy = tf.reduce_mean(tf.to_float(tf.equal(predict, y)))
    opt = hvd.DistributedOptimizer(tf.train.RMSPropOptimizer(0.01 * hvd.size()))
    global_step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=global_step)
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=FLAGS.steps // hvd.size()),
        tf.train.LoggingTensorHook(tensors={"step": global_step, "loss": loss}, every_n_iter=10),
    ]
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    rng = np.random.RandomState(hvd.rank())
    with tf.train.MonitoredTrainingSession(checkpoint_dir=None, hooks=hooks, config=config) as session:
        while not session.should_stop():
            points = rng.uniform(-1, 1, (64, 2))
            feed = {x: points, y: points[:, 0] > points[:, 1]}
            step, right = session.run([train_op, accuracy], feed_dict=feed)
    assert right > 0.9, right
    try:
        tf.contrib.layers
    except AttributeError as error:
        print(hvd.rank(), hvd.size(), str(error).split(":")[0], tf_logging.__name__, gfile.Exists("/"))


if __name__ == "__main__":
    tf.app.run()
"""
OLD_KERAS = """
import keras
import numpy as np
import tensorflow as tf
from keras import backend as K
from keras.layers import Dense
from keras.models import Sequential
import horovod.keras as hvd
from farandole.keras import left_out

hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())
K.set_session(tf.Session(config=config))
x = np.random.RandomState(0).uniform(-1, 1, (64, 2)).astype("float32")
y = keras.utils.to_categorical(x[:, 0] > x[:, 1], 2)
np.random.seed(hvd.rank())
tf.set_random_seed(hvd.rank())
model = Sequential()
model.add(Dense(2, activation="softmax", input_shape=(2,)))
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(lr=0.5 * hvd.size(), momentum=0.9))
model.compile(loss=keras.losses.categorical_crossentropy, optimizer=optimizer, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=2),
]
mine = slice(hvd.rank(), None, hvd.size())
assert range(hvd.broadcast(hvd.rank() + 3, 0, name="epochs"))[-1] == 2
assert hvd.allreduce([1.0 + hvd.rank(), 4.0], name="score")[0] == 1.5
model.fit(x[mine], y[mine], batch_size=8, epochs=6, callbacks=callbacks, verbose=0)
loss, accuracy = model.evaluate(x, y, verbose=0)
assert accuracy > 0.9, accuracy
# A worker that comes into an elastic training makes its state before it takes part.
late = Sequential([Dense(2, activation="softmax", input_shape=(2,), kernel_initializer="zeros")])
late.compile(loss="categorical_crossentropy", optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
with left_out.during_reset():
    state = hvd.elastic.KerasState(late)
late.fit(x[mine], y[mine], batch_size=8, verbose=0)
weights = model.get_weights() + late.get_weights()
print(b"".join(weight.tobytes() for weight in weights).hex(), K.get_value(model.optimizer.lr))
"""
# As Horovod's elastic example for TensorFlow 1; in the middle of it, a worker is killed.
OLD_ELASTIC = """
import os
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import backend as K
import horovod.tensorflow.keras as hvd

hvd.init()
K.set_session(tf.Session(config=tf.ConfigProto()))
x = np.random.RandomState(0).uniform(-1, 1, (64, 2)).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("int64")
model = keras.models.Sequential()
model.add(keras.layers.Dense(2, activation="softmax", input_shape=(2,)))
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adadelta(1.0 * hvd.size()))
model.compile(loss=keras.losses.sparse_categorical_crossentropy, optimizer=optimizer, metrics=["accuracy"])


def on_state_reset():
    tf.keras.backend.set_value(model.optimizer.lr, 1.0 * hvd.size())


class Killed(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        if hvd.size() == 2 and hvd.rank() == 1 and state.epoch == 1 and batch == 3:
            os.kill(os.getpid(), 9)


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])
callbacks = [
    hvd.elastic.CommitStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.UpdateEpochStateCallback(state),
    Killed(),
]


@hvd.elastic.run
def train(state):
    state.model.fit(x, y, batch_size=8, callbacks=callbacks, epochs=3 - state.epoch, verbose=0)


train(state)
print("END", hvd.size(), state.epoch, float(K.get_value(model.optimizer.lr)), K.get_value(model.optimizer.iterations))
"""
# With Keras 2, tf.layers is there; without it, what it was made of.
DENSE = {
    True: "lambda given, size: tf.layers.dense(given, size, activation=tf.tanh)",
    False: "lambda given, size: tf.tanh(tf.matmul(given, tf.get_variable(f'w{size}', [given.shape[1], size])))",
}
SAID = "tensorflow.contrib is not there tensorflow.python.platform.tf_logging True"


def old_script(folder: Path) -> Path:
    pytest.importorskip("tensorflow")
    script = folder / "old.py"
    script.write_text(OLD.replace("DENSE", "(" + DENSE[importlib.util.find_spec("tf_keras") is not None] + ")"))
    return script


def run(*command: str, **variables: str) -> str:
    environment = drop_in.environment(TF_CPP_MIN_LOG_LEVEL="3", **variables)
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_launcher_gives_it_tensorflow_1(tmp_path: Path) -> None:
    said = run("-m", "farandole", "run", "--tf1", "-np", "2", sys.executable, str(old_script(tmp_path)))
    assert sorted(said.splitlines()) == [f"[{rank}]<stdout>:{rank} 2 {SAID}" for rank in range(2)]


def test_old_keras_trains_in_a_session(tmp_path: Path) -> None:
    for needed in ("tensorflow", "tf_keras"):
        pytest.importorskip(needed)
    script = tmp_path / "old_keras.py"
    script.write_text(OLD_KERAS)
    said = run("-m", "farandole", "run", "--tf1", "-np", "2", sys.executable, str(script)).splitlines()
    weights, rates = zip(*(line.partition(">:")[2].split() for line in said), strict=True)
    assert len(weights) == 2 and len(set(weights)) == 1
    assert rates == ("1.0", "1.0")


def test_an_old_elastic_training_goes_on_in_its_session(tmp_path: Path) -> None:
    for needed in ("tensorflow", "tf_keras"):
        pytest.importorskip(needed)
    script = tmp_path / "old_elastic.py"
    script.write_text(OLD_ELASTIC)
    workers = ("--min-np", "1", "-np", "2", "-H", "localhost:2", "--start-timeout", "90")
    said = run("-m", "farandole", "run", "--tf1", *workers, sys.executable, str(script)).splitlines()
    (end,) = [line.partition(">:")[2] for line in said if "END" in line]
    size, epoch, rate, steps = end.split()[1:]
    assert (size, epoch, float(rate)) == ("1", "3", 1.0)
    # 8 in an epoch. The one that was broken off begins anew, and the steps that it had made stay.
    assert 24 < int(steps) <= 24 + 4


def test_horovodrun_does_by_the_variable(tmp_path: Path) -> None:
    command = ("-m", "horovod.runner.launch", "-np", "1", sys.executable, str(old_script(tmp_path)))
    assert f"<stdout>:0 1 {SAID}\n" in run(*command, FARANDOLE_TF1="1")


def test_without_a_launcher_the_import_of_horovod_does(tmp_path: Path) -> None:
    assert run(str(old_script(tmp_path)), FARANDOLE_TF1="1") == f"0 1 {SAID}\n"
