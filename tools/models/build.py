"""Build the models of the repository from what PyPI packages ship; what is built and unchanged is left alone.

Does not install anything: it runs in the environment of requirements/models.lock (`make models`).

    python tools/models/build.py [--repository DIR] [MODEL …]

A version folder gets the model's files and `built.json`, which records the recipe (a hash over the builder's source
and the lock), each file's size and SHA-256, and what a trained model gets right of held-out texts. Files are replaced
as a whole: a reader never sees half a model.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent.parent
MODELS_LOCK = ROOT / "requirements" / "models.lock"
SHARED_SOURCES = (TOOLS / "build.py", TOOLS / "graph.py", TOOLS / "original.py", MODELS_LOCK)
TEXT_SOURCES = ("linear.py", "minilm.py", "vader_ratings.py")
RECORD = "built.json"
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Build:
    """A version and what builds it: `function` of `module` writes into the folder it is given."""

    model: str
    version: str
    module: str
    function: str = "build"
    sources: tuple[str, ...] = ()
    """Beside `module`, whose change makes it build again."""


BUILDS = (
    Build("toxicity", "1", "toxicity"),
    Build("minilm", "1", "minilm"),
    Build("minilm", "2", "minilm_int8", sources=("minilm.py",)),
    Build("sentiment", "1", "sentiment", "build_first", TEXT_SOURCES),
    Build("sentiment", "2", "sentiment", "build_second", TEXT_SOURCES),
    Build("intent", "1", "intent", sources=("templates.py", *TEXT_SOURCES)),
    Build("magika", "1", "file_types"),
)


def main() -> None:
    """Build each model named on the command line, all by default."""
    names = list(dict.fromkeys(build.model for build in BUILDS))
    parser = argparse.ArgumentParser(description="Build the demo's models.")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository", help="folder in Triton's layout")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(names))
    arguments = parser.parse_args()
    if unknown := set(arguments.models).difference(names):
        parser.error(f"no model {min(unknown)!r}, there are {', '.join(names)}")
    for build in BUILDS:
        if build.model in (arguments.models or names):
            done = _bring_up_to_date(build, arguments.repository / build.model / build.version)
            print(f"models: {build.model} {build.version}: {done}", flush=True)


def _bring_up_to_date(build: Build, version_dir: Path) -> str:
    recipe = _recipe(build)
    if _is_current(version_dir, recipe):
        return "up to date"
    start_s = time.monotonic()
    version_dir.mkdir(parents=True, exist_ok=True)
    (version_dir / RECORD).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=version_dir.parent) as folder:
        write = getattr(importlib.import_module(build.module), build.function)
        accuracy: dict[str, float] = write(Path(folder)) or {}
        _open_session(Path(folder) / "model.onnx")
        files = {path.name: _described(path) for path in sorted(Path(folder).iterdir())}
        for file_name in sorted(files, reverse=True):  # the tokenizer before the model: a server may be watching
            (Path(folder) / file_name).replace(version_dir / file_name)
    record = {"recipe": recipe, "files": files} | ({"held_out_accuracy": accuracy} if accuracy else {})
    (version_dir / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    size = sum(int(entry["bytes"]) for entry in files.values()) / MEGABYTE
    right = ", ".join(f"{what} {part:.1%}" for what, part in accuracy.items())
    told = f"; held-out texts right: {right}" if right else ""
    return f"built in {time.monotonic() - start_s:.1f} s, {size:.1f} MB{told}"


def _recipe(build: Build) -> str:
    digest = hashlib.sha256()
    own = [TOOLS / f"{build.module}.py", *(TOOLS / name for name in build.sources)]
    data = [ROOT / "requirements" / "data.txt"] if "vader_ratings.py" in build.sources else []
    for path in (*own, *data, *SHARED_SOURCES):
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
