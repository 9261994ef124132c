"""A server that speaks as much of MLflow's REST interface as a run needs. It can be slow, and it can be ended.

python tests/tracking/mlflow_server.py STORE DELAY_S [PORT]     prints its port; STORE keeps what it was sent
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

INFO = {
    "run_id": "r1",
    "run_uuid": "r1",
    "experiment_id": "1",
    "status": "RUNNING",
    "start_time": 1,
    "artifact_uri": "x",
}


def stored(store):
    """The metrics in the order in which they arrived: (name, step, value)."""
    if not store.exists():
        return []
    lines = store.read_text().splitlines()
    return [(each["key"], int(each["step"]), each["value"]) for line in lines for each in json.loads(line)]


class Handler(BaseHTTPRequestHandler):
    """One request. Its answer comes after the server's delay."""

    def answer(self, body):
        where = self.path.partition("?")[0].rpartition("/mlflow/")[2]
        store, made = self.server.store, self.server.store.with_suffix(".made")
        if where == "experiments/get-by-name":
            return {"experiment": {"experiment_id": "1", "name": "walk", "lifecycle_stage": "active"}}
        if where == "runs/search":
            return {"runs": [self.run()] if made.exists() else []}
        if where == "runs/create":
            made.touch()
            return {"run": self.run()}
        if where == "runs/get":
            return {"run": self.run()}
        if where == "runs/update":
            return {"run_info": INFO}
        if where == "runs/log-batch" and body.get("metrics"):
            with store.open("a") as stream:  # one line, so that a request is stored in full or not at all
                stream.write(json.dumps(body["metrics"]) + "\n")
        return {}

    def run(self):
        last = {
            name: {"key": name, "value": value, "step": step, "timestamp": 1}
            for name, step, value in stored(self.server.store)
        }
        return {"info": INFO, "data": {"metrics": list(last.values())}}

    def reply(self):
        time.sleep(self.server.delay_s)
        length = int(self.headers.get("Content-Length") or 0)
        content = json.dumps(self.answer(json.loads(self.rfile.read(length) or "{}"))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = reply  # noqa: N815 the names of the base class

    def log_message(self, *_):
        """Nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int((sys.argv[3:] or ["0"])[0])), Handler)
    server.store, server.delay_s = Path(sys.argv[1]), float(sys.argv[2])
    print(server.server_port, flush=True)
    server.serve_forever()
