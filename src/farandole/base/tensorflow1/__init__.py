"""Scripts for TensorFlow 1 that say `import tensorflow as tf`: they get `tensorflow.compat.v1`, by an import hook.

`farandole run --tf1`, or the variable that it sets, asks for it. The launcher puts `START_FOLDER` at the front of the
workers' PYTHONPATH, whose `sitecustomize` installs the hook as soon as Python starts. Where no launcher of ours does,
`import horovod.tensorflow` does it, if the variable is set. See `farandole.base.tensorflow1.hook`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from farandole.base.settings.table import SETTINGS, Settings

START_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "at_start")
"""The folder that must be first in a worker's PYTHONPATH."""


def is_asked_for(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment asks for TensorFlow 1.

    Raises:
        SettingError: the variable's value is none.

    Example:
        >>> is_asked_for({"FARANDOLE_TF1": "1"})
        True
    """
    named = {name: environment[name] for name in SETTINGS["tf1"].variables if name in environment}
    return Settings.from_environment(named).tf1
