"""Support for TensorFlow 1 scripts: an import hook makes `import tensorflow` give them `tensorflow.compat.v1`.

`farandole run --tf1`, or the variable that it sets, requests it. The launcher puts `START_FOLDER` at the front of the
workers' PYTHONPATH, and its `sitecustomize` installs the hook when Python starts. Under other launchers,
`import horovod.tensorflow` installs it if the variable is set.
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
        SettingError: the variable's value is not valid.

    Example:
        >>> is_asked_for({"FARANDOLE_TF1": "1"})
        True
    """
    named = {name: environment[name] for name in SETTINGS["tf1"].variables if name in environment}
    return Settings.from_environment(named).tf1
