"""Which fields of Triton's ModelConfig Headrace honours, as a table. A set field that is not in it is refused by name.

Invariants: no field of the message is ignored in silence (tests/unit/test_pbtxt_refusals.py walks the message).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_POLICY = ("timeout_action", "default_timeout_microseconds", "allow_timeout_override", "max_queue_size")

HONOURED: Final = frozenset(
    {
        "name",
        "platform",
        "backend",
        "version_policy.latest.num_versions",
        "version_policy.all",
        "version_policy.specific.versions",
        "max_batch_size",
        *(f"input.{f}" for f in ("name", "data_type", "format", "dims", "allow_ragged_batch", "optional")),
        "input.reshape.shape",
        *(f"output.{f}" for f in ("name", "data_type", "dims", "label_filename")),
        "output.reshape.shape",
        "optimization.graph.level",
        "optimization.input_pinned_memory",
        "optimization.output_pinned_memory",
        *(
            f"optimization.execution_accelerators.{device}_execution_accelerator.{f}"
            for device in ("gpu", "cpu")
            for f in ("name", "parameters.*")
        ),
        *(
            f"dynamic_batching.{f}"
            for f in ("preferred_batch_size", "max_queue_delay_microseconds", "preserve_ordering")
        ),
        *(f"dynamic_batching.{f}" for f in ("priority_levels", "default_priority_level")),
        *(f"dynamic_batching.default_queue_policy.{f}" for f in _POLICY),
        *(f"dynamic_batching.priority_queue_policy.*.{f}" for f in _POLICY),
        *(f"instance_group.{f}" for f in ("name", "kind", "count", "gpus")),
        "default_model_filename",
        "parameters.*.string_value",
        *(f"model_warmup.{f}" for f in ("name", "batch_size", "count")),
        *(f"model_warmup.inputs.*.{f}" for f in ("data_type", "dims", "zero_data", "random_data", "input_data_file")),
    }
)
"""Paths of fields; `*` is a map's key. A path also honours the empty messages that lead to it."""

MAP_FIELDS: Final = frozenset(
    {
        "cc_model_filenames",
        "dynamic_batching.priority_queue_policy",
        "ensemble_scheduling.step.input_map",
        "ensemble_scheduling.step.output_map",
        "metric_tags",
        "model_repository_agents.agents.parameters",
        "model_warmup.inputs",
        "optimization.cuda.graph_spec.graph_lower_bound.input",
        "optimization.cuda.graph_spec.input",
        "optimization.execution_accelerators.cpu_execution_accelerator.parameters",
        "optimization.execution_accelerators.gpu_execution_accelerator.parameters",
        "parameters",
    }
)
"""Fields that are maps: what stands below them is named by the user."""

_WHY: Final = {
    "runtime": "a backend is chosen by `backend` or `platform`",
    "sequence_batching": "sequences (stateful models) are not served",
    "ensemble_scheduling": "ensembles are not served",
    "model_transaction_policy": "decoupled models are not served",
    "response_cache": "there is no response cache",
    "cc_model_filenames": "the model file is chosen by `default_model_filename` alone",
    "optimization.input_pinned_memory": "the backends keep no pinned buffers",
    "optimization.output_pinned_memory": "the backends keep no pinned buffers",
}
_PREFIXES: Final = frozenset(path[:at] for path in HONOURED for at, char in enumerate(path) if char == ".")


def refusals(config: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each set field that is not honoured, with its name and value."""
    yield from _walk(config, "", "")


def _walk(node: Mapping[str, Any], path: str, shown: str) -> Iterator[str]:
    is_map = path in MAP_FIELDS
    for key, value in node.items():
        below = f"{path}.{'*' if is_map else key}".lstrip(".")
        name = f"{shown}[{key!r}]" if is_map else f"{shown}.{key}".lstrip(".")
        if below not in HONOURED and below not in _PREFIXES:
            yield _sentence(below, name, value)
        elif isinstance(value, dict):
            yield from _walk(value, below, name)
        elif isinstance(value, list):
            for at, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _walk(item, below, f"{name}[{at}]")


def _sentence(path: str, name: str, value: object) -> str:
    compact = json.dumps(value, ensure_ascii=False)
    shown = compact if len(compact) <= 80 else compact[:77] + "..."
    parts = path.split(".")
    why = next((_WHY[p] for n in range(len(parts), 0, -1) if (p := ".".join(parts[:n])) in _WHY), "")
    return f"{name} = {shown} is not supported" + (f": {why}" if why else "")
