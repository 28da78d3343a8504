"""Loads a model version's tokenizer. The only file that imports `tokenizers`, and that only where a model has one."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import Any, cast

from contract.model_config import ModelConfig
from workers.backends.base import LoadFailed
from workers.text.encode import TextEncoder, Tokenizer
from workers.text.rules import TextRules, text_rules


async def load_encoder(config: ModelConfig, model_dir: Path, version: str) -> TextEncoder | None:
    """The encoder of a model that has a tokenizer, else None; loads in a thread.

    Raises:
        LoadFailed: the library or the file is missing, or can't be used; says which and why.
    """
    rules = text_rules(config)
    if rules is None:
        return None
    return await asyncio.to_thread(_load, rules, model_dir, version)


def _load(rules: TextRules, model_dir: Path, version: str) -> TextEncoder:
    path = find_file(rules, model_dir, version)
    # Its own threads would take the cores from the models; a request's few texts are done sooner without them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # noqa: BLE001 - the library raises bare Exception for whatever is wrong with the file
        raise LoadFailed(f"tokenizer {rules.file!r} can't be read: {e}") from None
    return prepared(tokenizer, rules)


def find_file(rules: TextRules, model_dir: Path, version: str) -> Path:
    """The tokenizer's file, where it can be read here. Raises LoadFailed: it, or the library, is not there."""
    path = next((p for p in (model_dir / version / rules.file, model_dir / rules.file) if p.is_file()), None)
    if path is None:
        where = f"neither in the version's folder {version!r} nor in the model's"
        raise LoadFailed(f"parameters['tokenizer'] = {rules.file!r}, a file of that name is {where}")
    if importlib.util.find_spec("tokenizers") is None:
        raise LoadFailed("a tokenizer needs the package tokenizers, not installed: pip install 'headrace[worker]'")
    return path


def prepared(tokenizer: Any, rules: TextRules) -> TextEncoder:
    """The encoder of a `tokenizers.Tokenizer`, set to the rules; what they leave open its own file says."""
    own = tokenizer.truncation or {}
    max_tokens = rules.max_tokens or own.get("max_length")
    side = rules.truncation or own.get("direction", "right")
    if max_tokens is None and rules.truncation in ("left", "right"):
        raise LoadFailed(f"parameters['truncation'] = {rules.truncation!r} needs max_tokens: the tokenizer names none")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_tokens is not None and side != "none":
        try:
            tokenizer.enable_truncation(max_tokens, direction=side)
        except Exception as e:  # noqa: BLE001 - as above
            raise LoadFailed(f"parameters['max_tokens'] = {max_tokens}: {e}") from None
    vocabulary = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return TextEncoder(cast("Tokenizer", tokenizer), rules, max_tokens, side == "none", vocabulary)
