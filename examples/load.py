"""Ask a text model from many callers at once and tell how its rows were batched: python examples/load.py MODEL [URL]

Standard library only. For figures worth quoting there is `make bench`.
"""

import argparse
import http.client
import json
import statistics
import threading
import time
from urllib.parse import urlsplit

TEXTS = ["thanks, that helps a lot", "this is not good at all", "where can I find the log?", "well done", "stop it"]


def connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=35)


def counts(url: str, model: str) -> tuple[int, int]:
    """Rows and executions so far, over all versions."""
    connection = connect(url)
    connection.request("GET", f"/v2/models/{model}/stats")
    versions = json.load(connection.getresponse())["model_stats"]
    connection.close()
    return sum(v["inference_count"] for v in versions), sum(v["execution_count"] for v in versions)


def call(url: str, model: str, numbers: range, took_s: list[float]) -> None:
    """One caller: a request after the other on one connection."""
    connection = connect(url)
    for number in numbers:
        text = TEXTS[number % len(TEXTS)]
        body = json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]})
        start_s = time.perf_counter()
        connection.request("POST", f"/v2/models/{model}/infer", body)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {answer.decode()}")
        took_s.append(time.perf_counter() - start_s)
    connection.close()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model")
parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
parser.add_argument("--callers", type=int, default=32)
parser.add_argument("--requests", type=int, default=1000)
given = parser.parse_args()

took_s: list[float] = []
rows, executions = counts(given.url, given.model)
chunks = [range(caller, given.requests, given.callers) for caller in range(given.callers)]
threads = [threading.Thread(target=call, args=(given.url, given.model, chunk, took_s)) for chunk in chunks]
start_s = time.perf_counter()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
elapsed_s = time.perf_counter() - start_s
later_rows, later_executions = counts(given.url, given.model)
num_rows, num_executions = later_rows - rows, later_executions - executions
print(
    f"{given.callers} callers: {num_rows} rows in {num_executions} executions, "
    f"{num_rows / max(num_executions, 1):.1f} rows each, "
    f"{len(took_s) / elapsed_s:.0f} requests/s, p50 {statistics.median(took_s) * 1000:.1f} ms"
)
if len(took_s) != given.requests:
    raise SystemExit(f"only {len(took_s)} of {given.requests} were answered")
