"""Queries libcuda, the library of NVIDIA's driver, in a separate process, because a broken driver may hang."""

from __future__ import annotations

import sys
from typing import Any

from farandole.control.agent.inspect.facts import CudaDriver

# Without persistence mode, the driver starts each GPU anew, one after another.
SECONDS = 10.0

_ASK = """\
import ctypes, json
told = {"verbs": True}
try:
    ctypes.CDLL("libibverbs.so.1")
except OSError:
    told["verbs"] = False
def ask(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise OSError(f"{name} failed with error {code}, '{(text.value or b'unknown').decode()}'")
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    ask("cuDriverGetVersion", ctypes.byref(number))
    told["version"] = number.value
    ask("cuInit", 0)
    ask("cuDeviceGetCount", ctypes.byref(number))
    told["devices"], told["uuids"] = [], []
    # Where the first one exists, it tells the instances of MIG apart.
    get_uuid = next(each for each in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid") if hasattr(cuda, each))
    for device in range(number.value):
        ask("cuDeviceGetName", name, len(name), device)
        told["devices"].append(name.value.decode(errors="replace"))
        uuid = ctypes.create_string_buffer(16)
        ask(get_uuid, uuid, device)
        told["uuids"].append(uuid.raw.hex())
except OSError as error:
    told["error"] = str(error)
print(json.dumps(told))
"""


def question() -> tuple[str, ...]:
    """Return the command line of a program that prints facts from libcuda, and whether libibverbs exists, as JSON."""
    return sys.executable, "-c", _ASK


def read(told: dict[str, Any]) -> CudaDriver:
    """Parse the output of the program."""
    return CudaDriver(
        version=told.get("version"),
        devices=tuple(told.get("devices", ())),
        uuids=tuple(told.get("uuids", ())),
        error=told.get("error", ""),
    )
