"""Headrace's own model parameters: their names and ranges. Pure; a backend's parameters are in its own file.

All names are in docs/model_config.md (tests/unit/test_docs_model_config.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from contract.model_config import ModelConfig
from contract.text import EMBEDDING_OUTPUT, MAX_TOKENS, TOKENIZER, TRUNCATION
from workers.repository.refusal import ConfigRefused

DEFAULT_MAX_EXECUTION_S: Final = ModelConfig(name="", backend="").max_execution_s
MAX_EXECUTION_S: Final = 86_400.0
TEXT: Final = (TOKENIZER, MAX_TOKENS, TRUNCATION, EMBEDDING_OUTPUT)
DEFAULT_VERSION: Final = "default_version"
ANY_BACKEND: Final = (DEFAULT_VERSION, "max_execution_s", "retry", "base_tokens", "max_padded_tokens", *TEXT)
"""Known to every backend, beside its own."""
OWN_PARAMETERS: Final = (*ANY_BACKEND, "execution")
"""`execution` is the python backend's."""
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}\Z")


def check_own(parameters: Mapping[str, str]) -> None:
    """Look at the parameters that are Headrace's.

    Raises:
        ConfigRefused: a value out of its range, or a name that looks like ours and is not; names both.
    """
    for name in parameters:
        if name.lower().startswith("headrace"):
            raise ConfigRefused(f"parameters[{name!r}] is not known, Headrace's own are {', '.join(OWN_PARAMETERS)}")
    if (execution := parameters.get("execution", "process")) not in ("process", "worker"):
        raise ConfigRefused(f"parameters['execution'] = {execution!r}, it must be 'process' or 'worker'")
    if (version := parameters.get(DEFAULT_VERSION)) is not None and not _VERSION.match(version):
        raise ConfigRefused(f"parameters['{DEFAULT_VERSION}'] = {version!r}, it must be a version such as '1'")
    if (retry := parameters.get("retry")) not in (None, "never"):
        raise ConfigRefused(f"parameters['retry'] = {retry!r}, it can only be 'never'")


def max_execution_s(parameters: Mapping[str, str]) -> float:
    """The longest that one execution may take.

    Raises:
        ConfigRefused: it is no number of seconds, or out of its range.
    """
    text = parameters.get("max_execution_s")
    if text is None:
        return DEFAULT_MAX_EXECUTION_S
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_EXECUTION_S:
        raise ConfigRefused(
            f"parameters['max_execution_s'] = {text!r}, it must be seconds, above 0 to {MAX_EXECUTION_S:.0f}"
        )
    return value
