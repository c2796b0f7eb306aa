"""Code around the documentation's blocks of Python: what they assume, and calls of their functions.

Pages show only new code; a model, a dataset or a loss function is the reader's. For each page, there is code that runs
before its first block, and code that runs after its n-th block, in the same namespace.
"""

from __future__ import annotations

_TORCH = """
import torch, torch.nn.functional as F
import farandole.torch as hvd

def make_model():
    return torch.nn.Linear(10, 2)

hvd.init()
torch.manual_seed(0)
dataset = torch.utils.data.TensorDataset(torch.randn(512, 10), torch.randint(2, (512,)))
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

BEFORE = {
    "explanation/elastic.md": _TORCH,
    "how-to/checkpoints.md": _TORCH + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1); last = 100\n",
    "how-to/compression.md": _TORCH + "gradients = [torch.ones(1000)]\n",
    "how-to/observing.md": _TORCH,
    "how-to/parquet.md": """
import os, numpy, pyarrow, pyarrow.parquet
os.makedirs("/shared/train", exist_ok=True)
table = pyarrow.table({"pixels": list(numpy.ones((640, 16), "float32")), "label": numpy.arange(640) % 10})
pyarrow.parquet.write_table(table, f"/shared/train/{os.environ['FARANDOLE_RANK']}.parquet", row_group_size=100)
import farandole.torch as hvd; hvd.init(); hvd.barrier()
""",
    "how-to/spark.md": """
import os, sys
from pathlib import Path
from spark_sessions import start_spark
start_spark("local[2]", Path("/shared"))
""",
    "how-to/torch_distributed.md": _TORCH,
    "how-to/profiling.md": _TORCH,
    "how-to/metrics.md": _TORCH
    + """
class Writer:
    written = []

    def add_scalar(self, name, value, step):
        self.written.append(name)

writer, loader = Writer(), range(3)
hvd.allreduce(torch.ones(3), name="counted")
""",
    "reference/jax.md": """
import jax, farandole.jax as hvd; hvd.init()
import jax.numpy as jnp, numpy, optax
params = jnp.zeros(4)
images, labels = numpy.ones((512, 4), "float32"), numpy.ones(512, "float32")

def loss(params, batch):
    x, y = batch
    return jnp.mean((x @ params - y) ** 2)
""",
    "reference/tensorflow.md": """
import os
import keras, numpy, tensorflow as tf

def make_model():
    return keras.Sequential([keras.Input((10,)), keras.layers.Dense(1)])

def train_one_batch():
    model.compile(loss="mse")
    model.train_on_batch(images[:32], labels[:32])

def load(path):
    return tf.zeros(10), tf.zeros(1)

images, labels = numpy.ones((512, 10), "float32"), numpy.ones((512, 1), "float32")
x, y = images, labels
paths = [f"{i}.png" for i in range(512)]
read_image = lambda path: tf.zeros(10)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(32)
loss_of = keras.losses.MeanSquaredError()
model, optimizer, batches = make_model(), keras.optimizers.SGD(0.01), 20
""",
}

# As the text between the two blocks says.
_IN_FOUR_PARTS = """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=4)
loader = hvd.elastic.ElasticLoader(dataset, global_batch_size=256)
"""

AFTER = {
    ("explanation/elastic.md", 0): _IN_FOUR_PARTS,
    ("reference/jax.md", 0): """
params, state = step(params, state, (images, labels))
simple_step = step
def step(params, state, x, y):
    return simple_step(params, state, (x, y))
""",
    ("reference/tensorflow.md", 0): "for x, y in dataset: step(x, y)",
    (
        "reference/tensorflow.md",
        2,
    ): "images, labels = numpy.ones((512, 10), 'float32'), numpy.ones((512, 1), 'float32')",
    # By itself a reporter writes every ten seconds.
    ("how-to/metrics.md", 0): """
soon = Reporter(writer.add_scalar, seconds=0)
assert not soon.report(1) and soon.report(2) and writer.written
""",
    ("how-to/checkpoints.md", 0): "assert checkpoint.load(state, rank=hvd.rank()) == 100",
}
