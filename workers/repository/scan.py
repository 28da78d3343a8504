"""Which folders of a repository are models, and which of their versions serve. Pure: it is given the listing.

Source: Triton model_repository.md (layout, version policy, ignored folders).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contract.errors import InvalidInput
from contract.model_config import ModelConfig, VersionState
from contract.subjects import check_name
from workers.repository.pbtxt import TritonConfig
from workers.repository.refusal import ConfigRefused

_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}\Z")
"""Triton's rule: digits, no leading zero; 18 digits stay inside a signed 64-bit integer."""

CONFIG_FILE: Final = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class Listed:
    """A name in a folder. A symlink is what it points to; a broken one is neither file nor folder."""

    name: str
    is_dir: bool
    is_file: bool = False
    files: tuple[str, ...] = ()
    """Names in it, where it is a folder."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model as the disk has it. `reason` says why it can't serve at all; empty when it can."""

    name: str
    model_dir: Path
    config: ModelConfig | None
    triton_config: TritonConfig
    versions: tuple[str, ...] = ()
    """Versions to load, highest first."""
    unavailable: tuple[VersionState, ...] = ()
    """Versions that the policy wants or the disk shows, and that can't be loaded."""
    reason: str = ""
    notes: tuple[str, ...] = ()
    """What was ignored, and why: a log line each, once per start."""
    fallbacks: tuple[str, ...] = ()
    """Versions that serve in place of those that fail to load, highest first."""


@dataclass(frozen=True, slots=True)
class FoundVersions:
    """The version folders of a model, highest first, and what lies beside them."""

    versions: tuple[str, ...]
    broken: tuple[VersionState, ...]
    notes: tuple[str, ...]


def is_version(name: str) -> bool:
    """Whether a folder of this name is a version."""
    return _VERSION.match(name) is not None


def is_model_folder(item: Listed) -> bool:
    """Whether a folder of the repository is a model: not hidden, and it has a config or a version folder."""
    is_visible = item.is_dir and not item.name.startswith((".", "__"))
    return is_visible and any(name == CONFIG_FILE or _VERSION.match(name) for name in item.files)


def ignored_note(item: Listed) -> str:
    """Why an entry of the repository is no model; empty for what nobody would take for one."""
    if not item.is_dir or item.name.startswith((".", "__")):
        return ""
    return f"{item.name}/ is ignored: it holds neither {CONFIG_FILE} nor a version folder"


def check_model_name(name: str) -> str:
    """`name`, when it can be a model's.

    Raises:
        ConfigRefused: empty, too long, or with control characters.
    """
    try:
        return check_name(name, "model name")
    except InvalidInput as error:
        raise ConfigRefused(error.message) from None


def find_versions(listing: Sequence[Listed], filename: str) -> FoundVersions:
    """The version folders among `listing`. One without `filename` is broken and doesn't count for the policy."""
    good: list[str] = []
    broken: list[VersionState] = []
    notes: list[str] = []
    for item in sorted(listing, key=lambda i: i.name):
        if item.is_dir and _VERSION.match(item.name):
            if why := _why_broken(item, filename):
                broken.append(VersionState(item.name, "UNAVAILABLE", why))
            else:
                good.append(item.name)
        elif item.is_dir:
            notes.append(f"{item.name}/ is ignored: its name is not a version number (digits, no leading zero)")
        elif _VERSION.match(item.name):
            notes.append(f"{item.name} is ignored: a version must be a folder")
    return FoundVersions(tuple(sorted(good, key=int, reverse=True)), tuple(broken), tuple(notes))


def choose_versions(
    triton: Mapping[str, Any], found: FoundVersions
) -> tuple[tuple[str, ...], tuple[VersionState, ...]]:
    """The versions that the policy loads, highest first, and those that can't be loaded.

    Raises:
        ConfigRefused: `latest` asks for no version, or no version is left to load.
    """
    policy = triton.get("version_policy", {})
    broken = {state.version: state for state in found.broken}
    if "specific" in policy:
        wanted = [str(v) for v in sorted(set(policy["specific"].get("versions", ())), reverse=True)]
        for version in wanted:
            if version not in found.versions and version not in broken:
                why = "version_policy.specific names it, but the model has no such folder"
                broken[version] = VersionState(version, "UNAVAILABLE", why)
        chosen = tuple(v for v in wanted if v in found.versions)
    elif "all" in policy:
        chosen = found.versions
    else:
        num = int(policy.get("latest", {}).get("num_versions", 1))
        if num < 1:
            raise ConfigRefused(f"version_policy.latest.num_versions = {num}, it must be at least 1")
        chosen = found.versions[:num]
    unavailable = tuple(sorted(broken.values(), key=lambda state: int(state.version), reverse=True))
    if not chosen:
        detail = "; ".join(f"{state.version}: {state.reason}" for state in unavailable[:3])
        raise ConfigRefused(f"no version to load ({detail or 'the folder has no version folder such as 1/'})")
    return chosen, unavailable


def find_fallbacks(triton: Mapping[str, Any], found: FoundVersions, chosen: Sequence[str]) -> tuple[str, ...]:
    """What `latest` falls back on, highest first: it asks for the newest that can serve; other policies name theirs."""
    policy = triton.get("version_policy", {})
    is_latest = "specific" not in policy and "all" not in policy
    return tuple(v for v in found.versions if v not in chosen) if is_latest else ()


def guess_backend(listing: Sequence[Listed], filename: str = "") -> str:
    """The backend that the files of the version folders, or the model's file name, stand for; empty for none."""
    names = {name for item in listing if item.is_dir and _VERSION.match(item.name) for name in item.files}
    if filename.endswith(".onnx") or (not filename and "model.onnx" in names):
        return "onnxruntime"
    if filename.endswith(".py") or (not filename and "model.py" in names):
        return "python"
    return ""


def _why_broken(item: Listed, filename: str) -> str:
    if not item.files:
        return "the version folder is empty"
    if filename and filename.split("/", 1)[0] not in item.files:
        return f"the version folder has no {filename}"
    return ""
