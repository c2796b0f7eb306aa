"""The command that installs packages, such as this version of farandole, on a host."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import shlex
import sys
import urllib.parse
import urllib.request
from collections.abc import Sequence

from farandole.base.installed import own_version
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.ssh import by_hand, is_ssh, user_options

# Modules whose packages have other names.
_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
_FOLDER = "/tmp/farandole-wheel"


def install_command(
    host: Host, options: SshOptions | None, python: str, modules: Sequence[str] = ("farandole",)
) -> str:
    """Return a command line, to be run on this machine, that installs the packages of modules into a host's Python.

    A farandole that was installed from source or from a file is not in any index: its wheel is copied there first.

    Args:
        host: the host to install on.
        options: the ssh options for reaching it; None: it is this machine.
        python: the path of the interpreter there.
        modules: names of the modules, as they are imported.
    """
    packages = [_PACKAGES.get(name, name) for name in modules if name != "farandole"]
    steps: list[str] = []
    if "farandole" in modules:
        steps, wheel = _copy_wheel(host, options) if options is not None else ([], installed_from())
        packages = [wheel or f"farandole=={own_version()}", *packages]
    # The shell there expands the name of the wheel.
    words = " ".join(each if each.startswith(_FOLDER) else shlex.quote(each) for each in packages)
    command = f"{shlex.quote(python)} -m pip install {words}"
    return " && ".join([*steps, command if options is None else by_hand(host, options, command)])


def _copy_wheel(host: Host, options: SshOptions) -> tuple[list[str], str]:
    """Return the steps that copy a wheel of farandole to a host, and its path there; "" if it is in an index."""
    source = installed_from()
    if source is None or not is_ssh(options):
        return [], ""
    steps = []
    wheel = shlex.quote(source)
    if not source.endswith(".whl"):
        steps.append(f"{sys.executable} -m pip wheel --no-deps --wheel-dir {_FOLDER} {shlex.quote(source)}")
        wheel = f"{_FOLDER}/farandole-*.whl"
    user, at, name = host.name.rpartition("@")
    name = f"{user}{at}[{name}]" if ":" in name else host.name
    of_scp = shlex.join("-P" if word == "-p" else word for word in user_options(options))
    steps.append(by_hand(host, options, f"mkdir -p {_FOLDER}"))
    steps.append(" ".join(filter(None, ["scp", of_scp, wheel, shlex.quote(f"{name}:{_FOLDER}/")])))
    return steps, f"{_FOLDER}/farandole-*.whl"


@functools.cache
def installed_from() -> str | None:
    """Return the source tree or file from which farandole was installed here; None: from an index."""
    try:
        text = importlib.metadata.distribution("farandole").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = urllib.parse.urlsplit(json.loads(text).get("url", "") if text else "")
    return urllib.request.url2pathname(url.path) if url.scheme == "file" else None
