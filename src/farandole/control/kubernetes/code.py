"""Small code that is submitted with a job, in a ConfigMap."""

from __future__ import annotations

import base64
import os
from typing import Any

from farandole.control.agent.file_messages import File, Link
from farandole.control.jobs.errors import BadSpec
from farandole.control.launcher.ship.file_list import build_manifest
from farandole.errors import SpecError

# The API server accepts objects of at most 1.5 MB, and a ConfigMap of at most 1 MiB.
MOST_BYTES = 700 * 1024
_TOO_LARGE = "put it into the image, or on a volume; files that git ignores are not sent"


def config_map(folder: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Return a ConfigMap with the files of a folder that git would not ignore, and the file of each of its keys.

    A ConfigMap has no links: a link to a file of the folder is sent as that file; other links are omitted.

    Raises:
        BadSpec: the folder cannot be sent in this way.
    """
    try:
        manifest = build_manifest(folder)
    except SpecError as error:
        raise BadSpec(f"options.kubernetes.ship: {error.message}", error.hint) from None
    sizes = {entry.path: entry.size for entry in manifest.entries if isinstance(entry, File)}
    for entry in manifest.entries:
        if isinstance(entry, Link) and (target := _inside(manifest.root, entry.path)) in sizes:
            sizes[entry.path] = sizes[target]
    size = sum(sizes.values())
    if size > MOST_BYTES:
        words = f"{folder} has {size // 1024} KiB, and a ConfigMap has room for {MOST_BYTES // 1024}"
        raise BadSpec(f"options.kubernetes.ship: {words}", _TOO_LARGE)
    data, items = {}, []
    for number, path in enumerate(sizes):
        try:
            with open(os.path.join(manifest.root, path), "rb") as content:
                data[f"file-{number}"] = base64.b64encode(content.read()).decode()
        except OSError as error:
            wrong = f"options.kubernetes.ship: {os.fsdecode(path)} cannot be read: {error.strerror}"
            raise BadSpec(wrong, "check whether a program is changing it") from None
        items.append({"key": f"file-{number}", "path": os.fsdecode(path)})
    return {"apiVersion": "v1", "kind": "ConfigMap", "binaryData": data}, items


def _inside(root: bytes, path: bytes) -> bytes:
    """Return the target of a path in a folder, relative to the folder, after all links are resolved."""
    return os.path.relpath(os.path.realpath(os.path.join(root, path)), root)
