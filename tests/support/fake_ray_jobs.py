"""A fake of the REST interface of Ray's jobs: the part that farandole uses."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRayJobs:
    """A server whose jobs the test defines.

    Attributes:
        address: the server's address.
        jobs: the jobs, in Ray's format, by id.
        logs: the jobs' logs, by id.
        token: the token that clients must send; "": none.
        loses: whether the next submission is accepted, but its answer is lost.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.token = ""
        self.loses = False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if fake.token and self.headers.get("Authorization") != f"Bearer {fake.token}":
                    code, said = 401, "Unauthorized"
                else:
                    code, said = fake.handle(self.command, self.path.removeprefix("/api/jobs/"), body)
                if code == 0:
                    return
                data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def handle(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and the answer; status 0: no answer."""
        name, _, verb = path.partition("/")
        if method == "POST" and not name:
            return self._submit(json.loads(body))
        if not name:
            return 200, list(self.jobs.values())
        if name not in self.jobs:
            return 404, f"Job {name} does not exist"
        if method == "DELETE":
            del self.jobs[name]
            return 200, {"deleted": True}
        if verb == "stop":
            self.jobs[name]["status"] = "STOPPED"
            return 200, {"stopped": True}
        return 200, {"logs": self.logs.get(name, "")} if verb == "logs" else self.jobs[name]

    def _submit(self, job: dict[str, Any]) -> tuple[int, Any]:
        name = job["submission_id"]
        if name in self.jobs:
            return 500, f"Traceback:\n  ...\nValueError: Job with submission_id {name} already exists."
        self.jobs[name] = {**job, "status": "PENDING", "start_time": 1000 * (1 + len(self.jobs))}
        if self.loses:
            self.loses = False
            return 0, None
        return 200, {"submission_id": name}
