"""A request's `parameters` and `outputs`: what they mean to us, what goes on to the model, what is refused by name.

Source: Triton's schedule policy, sequence, classification and binary tensor data extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from contract.errors import InvalidInput
from contract.messages import ParameterValue
from contract.model_config import ModelConfig
from gateway.oip.json_numbers import shown
from gateway.oip.plan import Plan
from gateway.oip.request import JSON_FORM, OutputForm, OutputJson

_MAX_INT64: Final = 2**63 - 1
_MAX_PRIORITY: Final = 2**31 - 1
MAX_PARAMETERS: Final = 256
"""Parameters of a request, and of each of its tensors."""
_MAX_CLASSES: Final = 2**31 - 1
_RESERVED: Final = ("sequence_id", "sequence_start", "sequence_end", "headers")


class Settings(msgspec.Struct, frozen=True):
    """What a request's parameters say."""

    priority: int = 0
    queue_timeout_us: int = 0
    is_binary: bool = False
    others: dict[str, ParameterValue] = {}


NO_SETTINGS: Final = Settings()


def read_parameters(parameters: Mapping[str, Any] | None, config: ModelConfig) -> Settings:
    """Sort the request's parameters into ours and the model's.

    Raises:
        InvalidInput: a value of the wrong type or range, or a parameter that is reserved or not supported.
    """
    if not parameters:
        return NO_SETTINGS
    check_number("the request", parameters)
    priority, timeout_us, is_binary = 0, 0, False
    others: dict[str, ParameterValue] = {}
    for name, value in parameters.items():
        if name == "priority":
            priority = _priority(value, config)
        elif name == "timeout":
            timeout_us = _whole_number(name, value, _MAX_INT64)
        elif name == "binary_data_output":
            is_binary = _boolean(f"parameter {name!r}", value)
        elif name in _RESERVED or name.startswith("triton_"):
            raise InvalidInput(f"parameter {name[:128]!r} is reserved and not supported here")
        else:
            others[name] = _model_value(name, value)
    return Settings(priority, timeout_us, is_binary, others)


def check_number(where: str, parameters: Mapping[str, Any]) -> None:
    """Raises InvalidInput where there are too many; looks at none of them."""
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidInput(f"{where}: parameters has {len(parameters)} fields, at most {MAX_PARAMETERS} are taken")


def read_outputs(
    outputs: list[OutputJson], plan: Plan, *, is_binary: bool
) -> tuple[tuple[str, ...], OutputForm, tuple[int, ...]]:
    """Names of the wanted outputs (none named: all), the form of each, its number of classes (empty: none wants any).

    Raises:
        InvalidInput: an output the model does not have, or one named twice; a parameter that is not supported.
    """
    by_name: dict[str, bool] = {}
    num_classes: list[int] = []
    for output in outputs:
        if output.name not in plan.output_names:
            names = ", ".join(repr(spec.name) for spec in plan.config.outputs) or "none"
            raise InvalidInput(f"output {output.name[:128]!r}: model {plan.config.name!r} has outputs {names}")
        if output.name in by_name:
            raise InvalidInput(f"output {output.name!r} is asked for twice")
        by_name[output.name] = _output_form(output, is_binary=is_binary)
        num_classes.append(_num_classes(output, plan) if output.parameters else 0)
    form = OutputForm(is_binary, by_name) if is_binary or any(by_name.values()) else JSON_FORM
    return tuple(by_name), form, tuple(num_classes) if any(num_classes) else ()


def _num_classes(output: OutputJson, plan: Plan) -> int:
    wanted = (output.parameters or {}).get("classification", 0)
    if type(wanted) is not int or not 0 <= wanted <= _MAX_CLASSES:
        raise InvalidInput(
            f"output {output.name!r}: parameter 'classification' is {shown(wanted)}, "
            f"it must be a whole number from 0 to {_MAX_CLASSES}"
        )
    spec = next(spec for spec in plan.config.outputs if spec.name == output.name)
    if wanted and spec.datatype in ("BOOL", "BYTES"):
        raise InvalidInput(f"output {output.name!r}: classification needs numbers, the output is {spec.datatype}")
    return wanted


def _output_form(output: OutputJson, *, is_binary: bool) -> bool:
    parameters = output.parameters or {}
    check_number(f"output {output.name!r}", parameters)
    for name, value in parameters.items():
        if name == "binary_data":
            is_binary = _boolean(f"output {output.name!r}: parameter 'binary_data'", value)
        elif name.startswith("shared_memory"):
            raise InvalidInput(f"output {output.name!r}: parameter {name[:128]!r} is not supported here")
    return is_binary


def _priority(value: object, config: ModelConfig) -> int:
    levels = config.dynamic_batching.priority_levels if config.dynamic_batching else 0
    priority = _whole_number("priority", value, _MAX_PRIORITY)
    if levels and priority > levels:
        raise InvalidInput(f"parameter 'priority' is {priority}, model {config.name!r} has levels 1 to {levels}")
    return priority


def _whole_number(name: str, value: object, highest: int) -> int:
    if type(value) is not int or not 0 <= value <= highest:
        raise InvalidInput(f"parameter {name!r} is {shown(value)}, it must be a whole number from 0 to {highest}")
    return value


def _boolean(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is {shown(value)}, it must be true or false")
    return value


def _model_value(name: str, value: object) -> ParameterValue:
    if isinstance(value, bool | float | str):
        return value
    if isinstance(value, int) and -_MAX_INT64 - 1 <= value <= _MAX_INT64:
        return value
    raise InvalidInput(
        f"parameter {name[:128]!r} is {shown(value)}, it must be a string, a boolean or a number of at most 64 bits"
    )
