"""Tell every few seconds how the server and each of its models are: python examples/health.py [HOST:PORT]

With NVIDIA's Triton client, unchanged. Stops after --times looks, else at Ctrl-C.
"""

import argparse
import contextlib
import itertools
import time

from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException


def look(address: str) -> str:
    """One line: is it live, is it ready, and each version of each model."""
    # A short time-out: a health check that hangs is an answer too.
    client = InferenceServerClient(address, connection_timeout=2.0, network_timeout=2.0)
    with contextlib.closing(client):
        try:
            parts = ["live" if client.is_server_live() else "not live"]
            parts.append("ready" if client.is_server_ready() else "not ready")
            for entry in client.get_model_repository_index():
                if "version" not in entry:
                    parts.append(f"{entry['name']}: {entry.get('reason') or 'not loaded'}")
                    continue
                is_ready = client.is_model_ready(entry["name"], entry["version"])
                parts.append(f"{entry['name']}/{entry['version']} {'ready' if is_ready else 'not ready'}")
        except (OSError, InferenceServerException) as error:
            return f"no answer: {error}"
    return ", ".join(parts)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("address", nargs="?", default="127.0.0.1:8000")
parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks")
parser.add_argument("--times", type=int, default=0, help="looks; 0: until Ctrl-C")
arguments = parser.parse_args()

with contextlib.suppress(KeyboardInterrupt):
    for number in itertools.count(1):
        print(look(arguments.address), flush=True)
        if number == arguments.times:
            break
        time.sleep(arguments.every)
