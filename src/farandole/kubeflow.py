"""A component for pipelines of Kubeflow: `training_job` submits a job, waits for it, and passes its metrics on.

from kfp import dsl
from farandole.kubeflow import training_job

train = training_job(image="me/pipelines:1")

@dsl.pipeline
def workflow():
    trained = train(job={"image": "me/train:1", "command": ["python", "train.py"], "workers": "2:8"})
    report(values=trained.outputs["Output"])
"""

# Not `from __future__ import annotations`: kfp reads the annotations of a component, and wants them to be types.
from typing import Any

from farandole.base.installed import not_installed, own_version

try:
    import kfp.dsl as dsl
except ModuleNotFoundError as error:
    raise not_installed("farandole.kubeflow", error, "kfp") from error

IMAGE = f"farandole/operator:{own_version()}"
"""An image with Python and `farandole[kubernetes]`; kfp itself is added to it when a step starts."""


def training_job(image: str = IMAGE, install_kfp: bool = True) -> Any:
    """Return the component.

    Its inputs are `job` (keys of a job, as in a file for `farandole submit`), `on` (the place; default: kubernetes) and
    `timeout_seconds` (default: a day). Its outputs are `Output`, the metrics that workers have printed, as a mapping,
    and `metrics`, the same as an artifact that Kubeflow shows. A step that is ended cancels its job; one that is
    restarted waits for the existing job with the name in `job`.

    Args:
        image: the image of the step, which contains farandole.
        install_kfp: whether to install kfp when the step starts; False if the image contains it.
    """
    return dsl.component(_run_training_job, base_image=image, packages_to_install=[], install_kfp_package=install_kfp)


# kfp copies the text of this function into the pipeline, so all that it needs is imported in it.
def _run_training_job(
    job: dict,  # type: ignore[type-arg]
    metrics: dsl.Output[dsl.Metrics],
    on: str = "kubernetes",
    timeout_seconds: int = 86400,
) -> dict:  # type: ignore[type-arg]
    """Submit a job, wait for it, and return the metrics that its workers have printed."""
    import signal
    import sys

    from farandole.control.jobs.pipeline_step import run_job

    # Kubeflow ends a step by SIGTERM: the job must not continue without it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    values = run_job(job, on, float(timeout_seconds), lambda line: print(line, flush=True))
    for name, value in values.items():
        metrics.log_metric(name, value)
    return values
