"""Starts and stops the stacks that are compared, each in an environment of its own. Measures nothing."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = Path(__file__).parent / "peers"
ENVIRONMENTS = Path(__file__).parent / ".peers"
ONNX = {
    "add_sub": ROOT / "tests" / "models" / "add_sub" / "1" / "model.onnx",
    "minilm": ROOT / "model_repository" / "minilm" / "1" / "model.onnx",
}
START_S = 60


@dataclass
class Running:
    """A stack that answers."""

    port: int
    pids: list[int]


def environment(name):
    """Python of the peer's own virtual environment, made when its requirements change."""
    requirements = PEERS / f"requirements-{name}.txt"
    stamp = hashlib.sha256(requirements.read_bytes()).hexdigest()
    folder = ENVIRONMENTS / name
    mark = folder / "stamp"
    if not mark.exists() or mark.read_text() != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", "-r", requirements], check=True)
        mark.write_text(stamp)
    return folder / "bin" / "python"


def free_port():
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def fastapi(model, workers=2):
    """FastAPI + ONNX Runtime with `workers` processes of one thread each."""
    port = free_port()
    command = [environment("fastapi"), "-m", "uvicorn", "fastapi_app:app", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", str(workers), "--no-access-log", "--log-level", "warning"]
    with _process(command, _peer_env(model)) as pid:
        _wait(f"http://127.0.0.1:{port}/health", pid)
        yield Running(port, [pid])


@contextlib.contextmanager
def mosec(model, workers=1, max_batch=32):
    """Mosec with `workers` model processes of one thread each."""
    port = free_port()
    command = [environment("mosec"), "mosec_app.py", "--address", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "error", "--timeout", "60000"]
    env = _peer_env(model) | {"WORKERS": str(workers), "MAX_BATCH": str(max_batch)}
    with _process(command, env) as pid:
        _wait(f"http://127.0.0.1:{port}/metrics", pid)
        yield Running(port, [pid])


@contextlib.contextmanager
def noop(delay_s, answer_bytes):
    """A target that computes nothing, to keep the load generator as busy as a real one does."""
    port = free_port()
    command = [environment("fastapi"), "-m", "uvicorn", "noop_app:app", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--no-access-log", "--log-level", "warning"]
    env = {"DELAY_S": str(delay_s), "ANSWER_BYTES": str(answer_bytes)}
    with _process(command, os.environ | env) as pid:
        _wait(f"http://127.0.0.1:{port}/", pid)
        yield Running(port, [pid])


def compiled():
    """What has a process run the compiled hot path, where `make compiled` has built it."""
    folder = ROOT / "build" / "compiled"
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"} if folder.exists() else {}


@contextlib.contextmanager
def headrace(models, *options, is_paced=False, env=None):
    """`headrace up` over a repository that holds just these model folders.

    `is_paced` gives each worker process another pace (bench/models/pace).
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch) / "repository"
        repository.mkdir()
        for source in models:
            (repository / Path(source).name).symlink_to(Path(source).resolve())
        command = [sys.executable, "-m", "headrace", "up", str(repository), "--http-port", str(port)]
        command += ["--metrics-port", str(free_port()), "--broker-port", str(free_port())]
        command += ["--data-dir", str(Path(scratch) / "data"), *options]
        env = (
            os.environ
            | compiled()
            | (env or {})
            | ({"BENCH_TURN_FILE": str(Path(scratch) / "turn")} if is_paced else {})
        )
        with _process(command, env) as pid:
            _wait(f"http://127.0.0.1:{port}/v2/health/ready", pid)
            for source in models:
                _wait(f"http://127.0.0.1:{port}/v2/models/{Path(source).name}/ready", pid)
            yield Running(port, [pid])


def call(port, request):
    """Send one request of a rotation file, for checking an answer: (status, body)."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    url = f"http://127.0.0.1:{port}{lines[0].split()[1]}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


def versions():
    """Package versions of every peer environment that exists."""
    found = {}
    for mark in sorted(ENVIRONMENTS.glob("*/stamp")):
        listed = subprocess.run(
            [mark.parent / "bin" / "pip", "list", "--format=json"], check=True, capture_output=True, text=True
        )
        found[mark.parent.name] = {p["name"]: p["version"] for p in json.loads(listed.stdout)}
    return found


def _peer_env(model):
    return os.environ | {"MODEL": model, "MODEL_FILE": str(ONNX[model]), "ORT_INTRA": "1", "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def _process(command, env):
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(c) for c in command], env=env, cwd=PEERS, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process.pid
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-3000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(url, pid):
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise RuntimeError(f"the stack ended before {url} answered")
        time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer 200 within {START_S} s")
