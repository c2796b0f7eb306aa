"""The files under `deploy/`: a Kustomize base and a Helm chart, both rendered from `manifests`.

A test compares them with the files. `python -m farandole.control.kubernetes.deploy.files deploy` writes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from farandole.base.installed import own_version
from farandole.control.kubernetes.deploy import manifests
from farandole.control.kubernetes.deploy.manifests import Install, Manifest

_HEAD = (
    "# Made by `python -m farandole.control.kubernetes.deploy.files deploy`. Do not edit: the source is manifests.py.\n"
)

# Placeholders in the manifests, and their replacements in the chart's templates.
_IMAGE, _REPLICAS, _NAMESPACE = "@@image@@", 4711, "@@namespace@@"
_TEMPLATES = {
    _IMAGE: "{{ .Values.image }}",
    str(_REPLICAS): "{{ .Values.replicas }}",
    _NAMESPACE: "{{ .Release.Namespace }}",
}
# Arguments that only some installations have, after the last common one.
_ARGUMENTS = """\
{{- with .Values.gangScheduler }}
        - --gang-scheduler={{ . }}
{{- end }}
"""


def as_yaml(items: list[Manifest]) -> str:
    """Return manifests as documents of YAML."""
    import yaml  # type: ignore[import-untyped]  # Only this needs it.

    return "---\n".join(yaml.dump(item, Dumper=_dumper(yaml), sort_keys=False, width=110) for item in items)


def _dumper(yaml: Any) -> Any:
    class Plain(yaml.SafeDumper):  # type: ignore[misc]  # The package has no types.
        """Repeats values instead of writing aliases, which are hard to read."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    return Plain


def kustomize() -> dict[str, str]:
    """Return the files of the Kustomize base."""
    install = Install(image=f"{manifests.IMAGE}:{own_version()}")
    parts = {
        "namespace.yaml": [manifests.all_of(install)[0]],
        "kinds.yaml": manifests.kinds(),
        "access.yaml": manifests.access(install),
        "operator.yaml": manifests.workload(install),
    }
    index = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(parts)}
    files = {name: _HEAD + as_yaml(items) for name, items in parts.items()}
    return {"kustomization.yaml": _HEAD + as_yaml([index]), **files}


def helm() -> dict[str, str]:
    """Return the files of the Helm chart."""
    install = Install(namespace=_NAMESPACE, image=_IMAGE, replicas=_REPLICAS)
    version = own_version()
    chart = {
        "apiVersion": "v2",
        "name": "farandole-operator",
        "description": "Runs MPIJobs and TrainingJobs.",
        "type": "application",
        "version": version,
        "appVersion": version,
    }
    values = {"image": f"{manifests.IMAGE}:{version}", "replicas": 2, "gangScheduler": ""}
    workload = _templated(as_yaml(manifests.workload(install)))
    last = f"        - --port={manifests.PORT}\n"
    assert last in workload
    return {
        "Chart.yaml": _HEAD + as_yaml([chart]),
        "values.yaml": _HEAD + as_yaml([values]),
        "values.schema.json": json.dumps(_values_schema(), indent=2) + "\n",
        "crds/kinds.yaml": _HEAD + as_yaml(manifests.kinds()),
        "templates/access.yaml": _HEAD + _templated(as_yaml(manifests.access(install))),
        "templates/operator.yaml": _HEAD + workload.replace(last, last + _ARGUMENTS),
    }


def _values_schema() -> dict[str, Any]:
    """Return the schema of the chart's values, so that a misspelled name is refused and not ignored."""
    named = {
        "image": {"type": "string", "minLength": 1},
        "replicas": {"type": "integer", "minimum": 0},
        "gangScheduler": {"type": "string"},
        # Helm passes it to a chart that is part of another one.
        "global": {"type": "object"},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": named,
        "additionalProperties": False,
    }


def _templated(text: str) -> str:
    for placeholder, template in _TEMPLATES.items():
        text = text.replace(f"'{placeholder}'", template).replace(placeholder, template)
    return text


def all_files() -> dict[str, str]:
    """Return all files by their path under `deploy/`."""
    base = {f"kustomize/base/{name}": text for name, text in kustomize().items()}
    return base | {f"helm/farandole-operator/{name}": text for name, text in helm().items()}


def main(folder: str) -> None:
    """Write all files."""
    for name, text in all_files().items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
