"""`python -m tests.differential.record`: ask a real MLServer all cases and write down what it answers.

Makes MLServer's environment under bench/.peers when it is not there (about 400 MB). test_against_mlserver.py holds our
door against what was written; run this again when cases.py or MLServer's version changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.differential.cases import cases

HERE = Path(__file__).parent
PEERS = HERE / "peers"
ROOT = HERE.parents[1]
ANSWERS = HERE / "mlserver_answers.json"
START_S = 90.0


def main() -> None:
    """Start, ask, write, stop."""
    with tempfile.TemporaryDirectory() as folder:
        port = _write_settings(Path(folder))
        command = [_environment() / "mlserver", "start", folder]
        server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(PEERS)})
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                _wait(client, server)
                answers = {case.name: _ask(port, case.body) for case in cases()}
                version = client.get("/v2").json()["version"]
        finally:
            server.terminate()
            server.wait(30)
    ANSWERS.write_text(json.dumps({"mlserver": version, "answers": answers}, indent=1, ensure_ascii=False) + "\n")
    sys.stderr.write(f"{len(answers)} answers of MLServer {version} in {ANSWERS.relative_to(ROOT)}\n")


def _ask(port: int, body: bytes) -> dict[str, object]:
    """On a connection of its own: MLServer closes it after a 500."""
    url = f"http://127.0.0.1:{port}/v2/models/echo/infer"
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=30)
    found: dict[str, object] = {"status": answer.status_code}
    if answer.status_code == 200:
        fields = answer.json()
        if b'"id": "' in body:  # without one MLServer makes one up
            found["id"] = fields.get("id")
        found["outputs"] = [{key: o[key] for key in ("name", "datatype", "shape", "data")} for o in fields["outputs"]]
    return found


def _environment() -> Path:
    requirements = PEERS / "requirements-mlserver.txt"
    stamp = hashlib.sha256(requirements.read_bytes()).hexdigest()
    folder = ROOT / "bench" / ".peers" / "mlserver"
    mark = folder / "stamp"
    if not mark.exists() or mark.read_text() != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", "-r", requirements], check=True)
        mark.write_text(stamp)
    return folder / "bin"


def _write_settings(folder: Path) -> int:
    ports = [_free_port() for _ in range(3)]
    settings = {"http_port": ports[0], "grpc_port": ports[1], "metrics_port": ports[2], "parallel_workers": 0}
    (folder / "settings.json").write_text(json.dumps({**settings, "host": "127.0.0.1"}))
    model = {"name": "echo", "implementation": "mlserver_echo.Echo", "parameters": {"version": "1"}}
    (folder / "model-settings.json").write_text(json.dumps(model))
    return ports[0]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _wait(client: httpx.Client, server: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if server.poll() is not None:
            sys.exit(f"MLServer ended with status {server.returncode}")
        try:
            if client.get("/v2/models/echo/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    sys.exit(f"MLServer was not ready within {START_S:.0f} s")


if __name__ == "__main__":
    main()
