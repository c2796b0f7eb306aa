"""The same steps as a pipeline of Kubeflow: each in a pod of its own, the training as a TrainingJob.

    pip install 'farandole[kfp]' kfp-kubernetes
    python kubeflow_pipeline.py digits.yaml --image me/workflow:1 --claim digits     # upload digits.yaml to Kubeflow

The image has farandole, the packages of `farandole[workflow]`, kfp, and this folder at --scripts. The claim is a
PersistentVolumeClaim that pods of all nodes can mount; steps find each other's files in it, at --out.
"""

import argparse
import json
import sys
from typing import Any

import kfp.dsl as dsl
from kfp import compiler

from farandole.kubeflow import training_job


# kfp copies the text of this function into the pipeline, so all that it needs is imported in it.
def run_script(
    command: list,
    metrics: dsl.Output[dsl.Metrics],
    metrics_file: str = "",
    training: dict = {},  # noqa: B006  # kfp knows no `dict | None`, and calls this once in a process.
) -> None:
    """Run a step of the workflow, and pass its metrics on, and those of the training before it."""
    import json
    import subprocess
    import sys

    subprocess.run([sys.executable, *command], check=True)
    values = dict(training)
    if metrics_file:
        with open(metrics_file) as file:
            values.update(json.load(file))
    for name, value in values.items():
        if isinstance(value, (int, float)):
            metrics.log_metric(name, value)


def make(image: str, scripts: str, out: str, job: dict[str, Any], on: str, claim: str = "") -> Any:
    """Return the pipeline.

    Args:
        image: of all steps.
        scripts: where this folder is, in the image.
        out: where steps leave their files.
        job: keys of the training's job, beside its command.
        on: where it is submitted to.
        claim: what is mounted at `out`; "": nothing.
    """
    script = dsl.component(run_script, base_image=image, install_kfp_package=False)
    train = training_job(image, install_kfp=False)
    data, weights, onnx = f"{out}/data", f"{out}/trained.pt", f"{out}/export/model.onnx"

    def step(name: str, after: Any, *arguments: str, **more: Any) -> Any:
        task = script(command=[f"{scripts}/{name}.py", *arguments], **more).set_display_name(name)
        return _prepared(task, after, out, claim)

    @dsl.pipeline(name="digits")
    def digits() -> None:
        prepared = step("prepare", None, data)
        whole = {**job, "command": [*job["command"], f"{scripts}/train.py", data, weights]}
        trained = _prepared(train(job=whole, on=on).set_display_name("train"), prepared, out, "")
        values = {"training": trained.outputs["Output"], "metrics_file": f"{out}/metrics.json"}
        evaluated = step("evaluate", trained, data, weights, f"{out}/metrics.json", **values)
        exported = step("export", evaluated, weights, f"{out}/export")
        step("predict", exported, onnx, data)

    return digits


def _prepared(task: Any, after: Any, out: str, claim: str) -> Any:
    if after is not None:
        task.after(after)
    # What a step does is on the disk: an answer out of a cache would leave it undone.
    task.set_caching_options(False)
    if claim:
        from kfp import kubernetes

        kubernetes.mount_pvc(task, pvc_name=claim, mount_path=out)
    return task


def kubernetes_job(image: str, out: str, claim: str) -> dict[str, Any]:
    """Return the training's job on Kubernetes: 1 to 3 workers, which find the claim where the other steps do."""
    mount = {"name": "work", "mountPath": out}
    template = {
        "spec": {
            "containers": [{"name": "worker", "image": image, "volumeMounts": [mount]}],
            "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": claim}}],
        }
    }
    return {
        "image": image,
        "command": ["python"],
        "workers": {"min": 1, "max": 3, "replicas": 2},
        "checkpoint": f"{out}/checkpoints",
        "options": {"kubernetes": {"template": template}},
    }


def main() -> int:
    """Write the compiled pipeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="to write to: .yaml")
    parser.add_argument("--image", required=True)
    parser.add_argument("--claim", required=True)
    parser.add_argument("--scripts", default="/workflow")
    parser.add_argument("--out", default="/work")
    parser.add_argument("--job", type=json.loads, help="keys of the training's job, as JSON, in place of the usual")
    given = parser.parse_args()
    job = given.job or kubernetes_job(given.image, given.out, given.claim)
    pipeline = make(given.image, given.scripts, given.out, job, "kubernetes", given.claim)
    compiler.Compiler().compile(pipeline, given.file)
    print(f"wrote {given.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
