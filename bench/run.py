"""`make bench`: Headrace and its peers in one run on one machine; prints tables, writes keys and raw samples.

Every figure of bench/results/latest.json is a median over rounds in which the stacks take turns, and is computed from
the samples in bench/results/raw/. Closed-loop load by wrk unless said otherwise. Peers: docs/performance.md.
"""

import argparse
import json
import platform
import shutil
import sys
import time
from pathlib import Path

import cases
import stacks

RESULTS = Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(cases.CASES), help=f"of {', '.join(cases.CASES)}")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per case; every stack runs once in each")
    parser.add_argument("--seconds", type=int, default=3, help="seconds of load per cell")
    chosen = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("bench: the load generator wrk is not installed (Debian and Ubuntu: apt-get install wrk)")
    for name in chosen.cases:
        keys, samples, table = cases.CASES[name](chosen.rounds, chosen.seconds)
        keys = {k: v for k, v in keys.items() if v is not None}
        print(f"\n== {name}\n{table}\n" + "\n".join(f"{k} = {v}" for k, v in keys.items()), flush=True)
        _save(name, keys, samples, chosen)


def _save(name, keys, samples, chosen):
    (RESULTS / "raw").mkdir(parents=True, exist_ok=True)
    settings = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
        "python": platform.python_version(),
        "is_compiled": bool(stacks.compiled()),
        "processor": _processor(),
        "peers": stacks.versions(),
    }
    raw = {"case": name, "settings": settings, "samples": samples}
    (RESULTS / "raw" / f"{name}.json").write_text(json.dumps(raw, separators=(",", ":")) + "\n")
    latest = RESULTS / "latest.json"
    merged = json.loads(latest.read_text()) if latest.exists() else {}
    latest.write_text(json.dumps(dict(sorted((merged | keys).items())), indent=2) + "\n")


def _processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    main()
