"""Names of Keras 2 that scripts for Horovod ask optimizers for: loaded with `horovod.tensorflow` and `horovod.keras`.

The optimizers are Keras' own, such as `tf.optimizers.Adam`, beside a `DistributedGradientTape`, in Horovod's examples,
which ask them for `optimizer.variables()` and `optimizer.lr`.
"""

from importlib.util import find_spec

__all__: list[str] = []

if find_spec("keras") is not None:
    from farandole.keras import keras_2_names

    keras_2_names.install()
