"""Reads a model repository from disk into ModelEntry values. Loads nothing and keeps no state; scan.py decides.

One model that can't be read never hurts another: it becomes an entry with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from contract.model_config import ModelConfig
from workers.backends.registry import completed, is_complete, offered_gpus
from workers.repository import pbtxt
from workers.repository.convert import (
    MODEL_FILENAMES,
    PLATFORMS,
    backend_of,
    check_inside,
    model_filename,
    to_model_config,
)
from workers.repository.pbtxt import TritonConfig
from workers.repository.position import MAX_SEARCHED_BYTES, position_of
from workers.repository.refusal import ConfigRefused
from workers.repository.scan import (
    CONFIG_FILE,
    Listed,
    ModelEntry,
    check_model_name,
    choose_versions,
    find_fallbacks,
    find_versions,
    guess_backend,
    ignored_note,
    is_model_folder,
)

ALL_MODELS: Final = "*"


def read_repository(path: Path, models: Sequence[str] = ()) -> list[ModelEntry]:
    """Every model below `path`, or only `models`; by name. Blocks: a config may be completed from the model itself.

    Raises:
        ConfigRefused: `path` is no folder, or one of `models` isn't there; names what is.
    """
    return [read_model(path / name) for name in model_names(path, models)]


def model_names(path: Path, models: Sequence[str] = ()) -> list[str]:
    """The names of the models below `path`, or of `models`; none and `*` stand for all. Reads no config.

    Raises:
        ConfigRefused: `path` is no folder, or one of `models` isn't there; names what is.
    """
    if not path.is_dir():
        raise ConfigRefused(f"model repository {str(path)!r} is not a folder")
    names = [item.name for item in _listing(path) if is_model_folder(item)]
    if ALL_MODELS in models:
        return names
    if missing := [name for name in models if name not in names]:
        raise ConfigRefused(f"model {missing[0]!r} is not in {str(path)!r}, which holds {', '.join(names) or 'none'}")
    return [name for name in names if not models or name in models]


def repository_notes(path: Path) -> list[str]:
    """What lies in the repository and is no model, a sentence each."""
    return [note for item in _listing(path) if not is_model_folder(item) and (note := ignored_note(item))]


def read_model(model_dir: Path, config: str = "") -> ModelEntry:
    """One model's folder; never raises for what is in it, the entry's `reason` says it.

    `config`, in Triton's JSON form, stands in for the folder's own config file.
    """
    triton: TritonConfig = {}
    try:
        check_model_name(model_dir.name)
        listing = _listing(model_dir)
        triton = _read_config(model_dir, listing, config)
        return _entry(model_dir, listing, triton)
    except ConfigRefused as error:
        reason = _reason(model_dir, str(error), has_file=not config)
        return ModelEntry(model_dir.name, model_dir, None, triton, reason=reason)
    except OSError as error:
        return ModelEntry(model_dir.name, model_dir, None, triton, reason=f"{model_dir.name}: {error}")


def _reason(model_dir: Path, why: str, *, has_file: bool) -> str:
    """The refusal with the file and, where the field it names stands in the file, line and column."""
    path, shown = model_dir / CONFIG_FILE, f"{model_dir.name}/{CONFIG_FILE}"
    if why.startswith(shown):
        return why
    try:
        text = path.read_text(encoding="utf-8") if has_file and path.stat().st_size <= MAX_SEARCHED_BYTES else ""
    except (OSError, UnicodeDecodeError):
        text = ""
    position = position_of(why, text)
    return f"{shown}: {why}" if position is None else f"{shown}:{position[0]}:{position[1]}: {why}"


def _entry(model_dir: Path, listing: Sequence[Listed], triton: TritonConfig) -> ModelEntry:
    backend = backend_of(triton)
    found = find_versions(listing, model_filename(triton, backend))
    versions, unavailable = choose_versions(triton, found)
    fallbacks = find_fallbacks(triton, found, versions)
    triton = _complete(triton, model_dir, (*versions, *fallbacks), backend)
    config = to_model_config(triton, model_dir.name, gpu_ids=offered_gpus(backend))
    _check_files(model_dir, triton)
    shown = pbtxt.with_defaults(_as_decided(triton, config))
    return ModelEntry(
        model_dir.name, model_dir, config, shown, versions, unavailable, notes=found.notes, fallbacks=fallbacks
    )


def _complete(triton: TritonConfig, model_dir: Path, versions: Sequence[str], backend: str) -> TritonConfig:
    """With what the highest version says that can be read: a broken one must not take the others down with it."""
    refusals: list[ConfigRefused] = []
    for version in versions:
        if is_complete(triton, model_dir / version, backend):
            return triton
        try:
            return completed(triton, model_dir, version, backend)
        except ConfigRefused as error:
            refusals.append(error)
    raise refusals[0]


def _read_config(model_dir: Path, listing: Sequence[Listed], config: str = "") -> TritonConfig:
    """The config that the file or `config` gives, with name and backend filled in; empty fields are left out."""
    path, shown = model_dir / CONFIG_FILE, f"{model_dir.name}/{CONFIG_FILE}"
    triton: TritonConfig = {}
    if config:
        triton = pbtxt.parse_json(config)
    elif path.is_file():
        with path.open("rb") as file:
            text = pbtxt.decode(file.read(pbtxt.MAX_CONFIG_BYTES + 1), shown)
        triton = pbtxt.parse(text, shown)
    triton.setdefault("name", model_dir.name)
    if not triton.get("backend") and not triton.get("platform"):
        backend = guess_backend(listing, triton.get("default_model_filename", ""))
        if backend:
            triton["backend"] = backend
    return triton


def _check_files(model_dir: Path, triton: TritonConfig) -> None:
    named = [(f"output {o['name']!r}: label_filename", o.get("label_filename", "")) for o in triton.get("output", [])]
    for warmup in triton.get("model_warmup", []):
        for name, tensor in warmup.get("inputs", {}).items():
            if file := tensor.get("input_data_file", ""):
                named.append((f"model_warmup input {name!r}: input_data_file", f"warmup/{file}"))
    for field, file in named:
        if file and not (model_dir / check_inside(field, file)).is_file():
            raise ConfigRefused(f"{field} = {file!r}, but the model's folder has no such file")


def _as_decided(triton: TritonConfig, config: ModelConfig) -> TritonConfig:
    """`triton` with what was decided for it, as Triton shows it: backend, file name, policy, instance groups."""
    groups: list[dict[str, Any]] = [
        {"name": g.name or f"{config.name}_{at}", "kind": g.kind, "count": g.count, "gpus": list(g.gpus)}
        for at, g in enumerate(config.instance_groups)
    ]
    platforms = {backend: platform for platform, backend in PLATFORMS.items() if backend in MODEL_FILENAMES}
    return {
        "version_policy": {"latest": {"num_versions": 1}},
        **triton,
        "backend": config.backend,
        "platform": config.platform or platforms.get(config.backend, ""),
        "default_model_filename": config.default_model_filename,
        "instance_group": groups,
    }


def _listing(folder: Path) -> list[Listed]:
    return [_listed(path) for path in sorted(folder.iterdir())]


def _listed(path: Path) -> Listed:
    if not path.is_dir():
        return Listed(path.name, is_dir=False, is_file=path.is_file())
    try:
        files = tuple(sorted(child.name for child in path.iterdir()))
    except PermissionError:
        files = ()
    return Listed(path.name, is_dir=True, files=files)
