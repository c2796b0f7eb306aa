"""The NVIDIA GPUs of this host, as CUDA_VISIBLE_DEVICES names them, found without the driver's libraries."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

_DEVICE = re.compile(r"[0-9]+|GPU-[\w-]+|MIG-[\w/-]+")
# A GPU in MIG mode has one of these for each of its instances.
_INSTANCES = "/proc/driver/nvidia/capabilities/gpu*/mig/gi*"


def list_gpus() -> list[str]:
    """Return the numbers of the GPUs; for a GPU in MIG mode, the UUIDs of its instances."""
    numbers = [
        str(number) for number in range(sum(bool(re.fullmatch(r"nvidia[0-9]+", name)) for name in os.listdir("/dev")))
    ]
    if numbers and not glob.glob(_INSTANCES):
        return numbers
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return numbers
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return numbers
    return read_listing(listing)


def read_listing(listing: str) -> list[str]:
    """Return the GPUs, or their instances, that `nvidia-smi -L` has listed.

    Example:
        >>> read_listing("GPU 0: A100 (UUID: GPU-a)\\n  MIG 1g.5gb Device 0: (UUID: MIG-b)\\nGPU 1: A100 (UUID: GPU-c)")
        ['MIG-b', '1']
    """
    gpus: list[list[str]] = []
    for line in listing.splitlines():
        if line.startswith("GPU "):
            gpus.append([])
        elif gpus and (instance := re.search(r"\bUUID: (MIG-[\w/-]+)", line)):
            gpus[-1].append(instance[1])
    return [device for number, instances in enumerate(gpus) for device in instances or [str(number)]]


def visible_gpus(environment: Mapping[str, str], present: Callable[[], Sequence[str]] = list_gpus) -> list[str]:
    """Return the GPUs that CUDA makes visible to a process with that environment.

    As in CUDA, the list in CUDA_VISIBLE_DEVICES ends at the first entry that is not a device, such as -1.

    Args:
        environment: the variables of the process.
        present: returns the GPUs of the host.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(present())
    visible: list[str] = []
    for entry in map(str.strip, listed.split(",")):
        if not _DEVICE.fullmatch(entry):
            break
        visible.append(entry)
    return visible


def of_slots(numbers: str, gpus: Sequence[str]) -> list[str]:
    """Return the GPUs of some slots of a host, in the order of the slots.

    Args:
        numbers: the numbers of the slots, and their total number, such as `1,3/4`: the second and the fourth of four.
        gpus: the GPUs of all slots. If there are fewer GPUs than slots, slots share GPUs; if there are more, all slots
            have the same number of GPUs, and some may be left over.

    Example:
        >>> of_slots("1,3/4", ["0", "1", "2", "3"]), of_slots("1/2", list("01234")), of_slots("2,0/3", ["0", "1"])
        (['1', '3'], ['2', '3'], ['0'])
    """
    slots, _, count = numbers.partition("/")
    each = max(1, len(gpus) // int(count))
    chosen = [
        gpus[(int(slot) * each + number) % len(gpus)] for slot in slots.split(",") for number in range(each) if gpus
    ]
    return list(dict.fromkeys(chosen))
