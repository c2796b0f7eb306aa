"""Names of Keras 2 that scripts for Horovod use on optimizers; loaded with `horovod.tensorflow` and `horovod.keras`.

The optimizers are Keras' own, such as `tf.optimizers.Adam`: Horovod's examples use them with a
`DistributedGradientTape`, and read `optimizer.variables()` and `optimizer.lr`.
"""

from importlib.util import find_spec

__all__: list[str] = []

if find_spec("keras") is not None:
    from farandole.keras import keras_2_names

    keras_2_names.install()
