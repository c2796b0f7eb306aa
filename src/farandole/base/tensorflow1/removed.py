"""Names of TensorFlow 1 that current versions of TensorFlow lack, with their replacements."""

from __future__ import annotations

REMOVED = {
    "contrib": "it was left out of TensorFlow 2. For tf.contrib.layers take tf.layers; for slim, the package tf_slim "
    "(`pip install tf_slim`, `import tf_slim as slim`); for contrib.learn, tf.train.MonitoredTrainingSession",
    "estimator": "it was left out of TensorFlow 2.16. Write the loop with tf.train.MonitoredTrainingSession, or take "
    "Keras",
    "examples": "its data sets are no longer part of TensorFlow. Use tf.keras.datasets.mnist.load_data(), or a "
    "reader of your own",
    "layers": "TensorFlow has it with Keras 2 only. Run `pip install tf_keras`, in TensorFlow's version, and leave "
    "TF_USE_LEGACY_KERAS unset",
}
"""Replacements, by the removed name in `tensorflow`."""


def advice(name: str) -> str:
    """Return the reason why `tensorflow` lacks a name, and the replacement.

    Example:
        >>> advice("turbo")
        "module 'tensorflow' has no attribute 'turbo', as tensorflow.compat.v1 has none"
    """
    if name in REMOVED:
        return f"tensorflow.{name} is not there: {REMOVED[name]}."
    return f"module 'tensorflow' has no attribute {name!r}, as tensorflow.compat.v1 has none"
