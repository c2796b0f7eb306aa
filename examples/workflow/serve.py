"""Step 5 of 5: serve predictions.

    python serve.py OUT/export/model.onnx --port 8000
    curl --json '{"images": [[[0, 0, 5, ...], ...]]}' http://127.0.0.1:8000/predict    # -> {"digits": [0]}

Needs ONNX Runtime and the exported model, neither PyTorch nor farandole. A server for one machine, to show the way:
it has no TLS and no limits for users.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime

PIXELS = (8, 8)
LARGEST_REQUEST = 1 << 20


class BadRequest(Exception):
    """What was asked cannot be answered; the text says why."""


def images_of(body: bytes) -> np.ndarray:
    """Return the images of a request.

    Raises:
        BadRequest: there are none that the model could take.
    """
    try:
        images = np.asarray(json.loads(body)["images"], dtype=np.float32)
    except (ValueError, TypeError, KeyError) as error:
        raise BadRequest(f'the body has to be {{"images": [...]}}, and is not: {error!r}') from None
    if images.ndim != 3 or images.shape[1:] != PIXELS:
        raise BadRequest(f"images have to have the shape [n, 8, 8], and have {list(images.shape)}")
    return images


def handler_of(session: onnxruntime.InferenceSession) -> type[BaseHTTPRequestHandler]:
    """Return what answers requests with a model."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if self.path != "/predict" or not 0 < length <= LARGEST_REQUEST:
                return self.answer(404, {"error": "POST /predict, with a body of at most 1 MiB"})
            try:
                images = images_of(self.rfile.read(length))
            except BadRequest as error:
                return self.answer(400, {"error": str(error)})
            (scores,) = session.run(["scores"], {"images": images})
            return self.answer(200, {"digits": scores.argmax(1).tolist()})

        def answer(self, code: int, content: dict) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing of each request."""

    return Handler


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the file model.onnx that export.py has written")
    parser.add_argument("--port", type=int, default=8000, help="0 is any that is free")
    given = parser.parse_args()

    server = ThreadingHTTPServer(("127.0.0.1", given.port), handler_of(onnxruntime.InferenceSession(given.model)))
    print(f"serving at http://127.0.0.1:{server.server_port}/predict", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
