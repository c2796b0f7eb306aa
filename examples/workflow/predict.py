"""Ask a served model for one prediction: a test image goes over HTTP, as a user's would.

    python predict.py OUT/export/model.onnx OUT/data

Starts serve.py, asks it what the first test image shows, ends it, and has exit code 1 if the answer is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np


def ask(address: str, image: np.ndarray) -> int:
    """Return which digit a server sees in an image."""
    body = json.dumps({"images": [image.tolist()]}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(json.load(answer)["digits"][0])


def main() -> int:
    """Serve, ask, and end the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the file model.onnx that export.py has written")
    parser.add_argument("data", type=Path, help="the folder that prepare.py has written")
    given = parser.parse_args()

    test = np.load(given.data / "test.npz")
    command = [sys.executable, str(Path(__file__).parent / "serve.py"), str(given.model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            # The server says where it is, or ends: either way this line comes.
            line = server.stdout.readline().strip() if server.stdout else ""
            print(line or "error: the server did not start", flush=True)
            if not line:
                return 1
            digit = ask(line.rpartition(" ")[2], test["images"][0])
        finally:
            server.terminate()
    print(f"the first test image is taken for a {digit}, and shows a {test['labels'][0]}")
    return int(digit != test["labels"][0])


if __name__ == "__main__":
    sys.exit(main())
