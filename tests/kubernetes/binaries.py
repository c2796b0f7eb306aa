"""Where the programs of the control plane are: in KUBEBUILDER_ASSETS, else unpacked from an archive near by."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_ARCHIVE = _ROOT.parent / "shared" / "kube" / "bin"
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_TOOLS = ("kubectl", "ip", "nsenter", "unshare", "setpriv", "openssl", "mount")


def why_not() -> str | None:
    """Return why there can be no cluster on this machine, and what to do about it; None where there can."""
    from tests.hosts import bed  # It knows what namespaces need.

    if (reason := bed.why_not()) is not None:
        return reason
    try:
        import aiohttp  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as error:
        return f"the nodes of the cluster need {error.name}; make .venv/ready-to-test installs it"
    lacking = [tool for tool in _TOOLS if _tool(tool) is None]
    if lacking:
        return f"no {', no '.join(lacking)} on this machine; tools/provision installs what the cluster is made with"
    if _tool("etcd") is None:
        return "no etcd on this machine; tools/provision installs it, or KUBEBUILDER_ASSETS names a folder that has it"
    return _why_no_servers()


def program(name: str) -> str:
    """Return the path of a program of the control plane. Call it where `why_not` returns None."""
    if (found := _tool(name)) is not None and name not in SERVERS:
        return found
    assets = _assets()
    return str((assets if assets is not None else _unpacked()) / name)


def _assets() -> Path | None:
    named = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(named) if named else None


def _tool(name: str) -> str | None:
    assets = _assets()
    if assets is not None and os.access(assets / name, os.X_OK):
        return str(assets / name)
    return shutil.which(name)


def _why_no_servers() -> str | None:
    assets = _assets()
    if assets is not None:
        lacking = [name for name in SERVERS if not os.access(assets / name, os.X_OK)]
        return f"KUBEBUILDER_ASSETS ({assets}) has no {', no '.join(lacking)}" if lacking else None
    if not all((_ARCHIVE / f"{name}.xz").exists() for name in SERVERS):
        return "no kube-apiserver: KUBEBUILDER_ASSETS should name a folder with kube-apiserver and its companions"
    return None


def _unpacked() -> Path:
    """Unpack what is not unpacked yet; several processes may do that at once."""
    sizes = repr([(_ARCHIVE / f"{name}.xz").stat().st_size for name in SERVERS])
    folder = Path(os.environ.get("FARANDOLE_TEST_CACHE") or Path.home() / ".cache" / "farandole-tests")
    folder /= f"kubernetes-{hashlib.sha256(sizes.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in SERVERS:
        if not (folder / name).exists():
            draft = folder / f".{name}.{os.getpid()}"
            with lzma.open(_ARCHIVE / f"{name}.xz") as packed, draft.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
            draft.chmod(0o755)
            draft.replace(folder / name)
    return folder
