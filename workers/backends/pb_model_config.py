"""`pb_utils.ModelConfig`: what `auto_complete_config` fills in. It may add to the config, never contradict it.

Written from the documented interface of Triton's python backend; no code of it is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_IO_FIELDS: Final = frozenset({"name", "data_type", "dims"})
_INPUT_FIELDS: Final = _IO_FIELDS | {"optional", "allow_ragged_batch", "format", "is_shape_tensor", "reshape"}
_OUTPUT_FIELDS: Final = _IO_FIELDS | {"label_filename", "is_shape_tensor", "reshape"}


class ModelConfig:
    """The config as a dict in Triton's JSON form, and the calls that complete it."""

    def __init__(self, model_config: str) -> None:
        self._config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The config so far."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raise it to `max_batch_size`; a larger one in the config is an error."""
        if self._config.get("max_batch_size", 0) > max_batch_size:
            raise ValueError(
                f"max_batch_size is {self._config['max_batch_size']} in the config,"
                f" auto_complete_config allows {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Switch the dynamic batcher on, unless the config chose a scheduler."""
        schedulers = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
        if not any(name in self._config for name in schedulers):
            self._config["dynamic_batching"] = {}

    def set_model_transaction_policy(self, transaction_policy: Mapping[str, bool]) -> None:
        """Set `decoupled`; contradicting the config is an error."""
        if unknown := set(transaction_policy) - {"decoupled"}:
            raise ValueError(f"transaction policy has unknown field {min(unknown)!r}, only 'decoupled' is known")
        wanted = bool(transaction_policy.get("decoupled", False))
        known = self._config.get("model_transaction_policy")
        if known is not None and bool(known.get("decoupled", False)) != wanted:
            raise ValueError(f"decoupled is {not wanted} in the config, {wanted} in auto_complete_config")
        if wanted:
            self._config["model_transaction_policy"] = {"decoupled": True}

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - the documented name
        """Add an input, or fill in what the config leaves out of it."""
        self._add("input", input, _INPUT_FIELDS)

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output, or fill in what the config leaves out of it."""
        self._add("output", output, _OUTPUT_FIELDS)

    def _add(self, side: str, tensor: Mapping[str, Any], fields: frozenset[str]) -> None:
        _check(side, tensor, fields)
        name = tensor["name"]
        tensors = self._config.setdefault(side, [])
        known = next((t for t in tensors if t.get("name") == name), None)
        if known is None:
            tensors.append(dict(tensor))
            return
        for field in ("data_type", "dims"):
            given, old = tensor[field], known.get(field)
            given = list(given) if field == "dims" else given
            if old not in (None, [], "TYPE_INVALID", given):
                raise ValueError(f"{side} {name!r}: {field} is {old} in the config, {given} in auto_complete_config")
            known[field] = given
        for field in ("optional", "allow_ragged_batch"):
            if tensor.get(field):
                known[field] = True


def _check(side: str, tensor: Mapping[str, Any], fields: frozenset[str]) -> None:
    if unknown := sorted(set(tensor) - fields):
        raise ValueError(f"{side} has unknown field {unknown[0]!r}, known are {', '.join(sorted(fields))}")
    if missing := sorted(_IO_FIELDS - set(tensor)):
        raise ValueError(f"{side} {tensor.get('name', '')!r} lacks {missing[0]!r}")
