"""config.pbtxt to Triton's JSON form and back, by protobuf's own parser. Judges nothing: convert.py does.

The one file of the workers that imports tritonclient's messages: this one module of them, past its package. The package
would bring grpc.aio, and its services, whose names other clients' packages (kserve, mlserver) have registered too where
they are imported in the same process.

Source: Triton model_config.proto, as `tritonclient.grpc.model_config_pb2` has it.
Invariants: the parser agrees with protobuf's on 106 files (tests/unit/test_pbtxt_oracle.py); INT64_FIELDS are the
message's 64-bit fields (tests/unit/test_pbtxt.py).
"""

from __future__ import annotations

import json
import re
import string
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

from workers.repository.refusal import ConfigRefused

TritonConfig = dict[str, Any]
"""A ModelConfig in Triton's JSON form: proto field names, enums by name, integers as numbers."""

MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
"""No sane config is longer; the largest public one we know has 11 KB."""

INT64_FIELDS: Final = frozenset(
    {
        "default_priority_level",
        "default_timeout_microseconds",
        "device_id",
        "dim",
        "dims",
        "max_queue_delay_microseconds",
        "max_sequence_idle_microseconds",
        "model_version",
        "priority_levels",
        "shape",
        "versions",
    }
)
"""protobuf's JSON writes 64-bit integers as strings, Triton's as numbers."""
_MAX_SEARCHED: Final = 64 * 1024  # characters; a parse of these takes a tenth of a second, a search sixteen of them
_WORD: Final = "-+.0123456789" + string.ascii_letters
_MAX_WHAT: Final = 400  # characters; the parser repeats a string of any length
_STRING_MAPS: Final = frozenset({"cc_model_filenames", "input_map", "metric_tags", "output_map", "parameters"})
"""Their keys are the user's own words, and no value in them is a 64-bit integer."""


def parse(text: str, file: str) -> TritonConfig:
    """The fields that `text` sets, in Triton's JSON form.

    Raises:
        ConfigRefused: not legal text format; names file:line:column and the offending line.
    """
    from google.protobuf import text_format

    message = _message_class()()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ConfigRefused(_explain(str(error), text, file, error.GetLine(), error.GetColumn())) from None
    except ValueError as error:
        # The parser checks no enum that is given by its number: protobuf itself does, and knows no line.
        raise ConfigRefused(_explain(str(error), text, file, *_first_word_of(text, ValueError))) from None
    return _to_json(message, with_defaults=False)


def parse_json(text: str) -> TritonConfig:
    """The fields that a config in Triton's JSON form sets.

    Raises:
        ConfigRefused: not JSON, or a field or value that Triton's ModelConfig doesn't have.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigRefused(f"the config that was sent is not JSON: {str(error) or 'nested too deep'}") from None
    if not isinstance(found, dict):
        raise ConfigRefused(f"the config that was sent is a JSON {type(found).__name__}, not an object")
    return without_defaults(found)


def decode(data: bytes, file: str) -> str:
    """The text of a config file, of which the caller read at most MAX_CONFIG_BYTES + 1 bytes.

    Raises:
        ConfigRefused: longer than MAX_CONFIG_BYTES, or not UTF-8; names the byte.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigRefused(f"{file}: it is longer than {MAX_CONFIG_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigRefused(f"{file}: byte {error.start} is not UTF-8: {data[error.start : error.end]!r}") from None


def with_defaults(config: Mapping[str, Any]) -> TritonConfig:
    """`config` with every field that has a default value, as `GET …/config` answers it.

    Raises:
        ConfigRefused: a field or value that Triton's ModelConfig doesn't have.
    """
    return _to_json(_to_message(config), with_defaults=True)


def without_defaults(config: Mapping[str, Any]) -> TritonConfig:
    """`config` with only the fields that say something.

    Raises:
        ConfigRefused: a field or value that Triton's ModelConfig doesn't have.
    """
    return _to_json(_to_message(config), with_defaults=False)


@cache
def _message_class() -> Any:
    package = find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'tritonclient'", name="tritonclient")
    name = "tritonclient.grpc.model_config_pb2"
    path = Path(next(iter(package.submodule_search_locations)), "grpc", "model_config_pb2.py")
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.get(name) or module_from_spec(spec)
    if name not in sys.modules:
        spec.loader.exec_module(module)
    return module.ModelConfig


def _to_message(config: Mapping[str, Any]) -> Any:
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(dict(config), _message_class()())
    except json_format.ParseError as error:
        raise ConfigRefused(str(error)) from None


def _to_json(message: Any, *, with_defaults: bool) -> TritonConfig:
    from google.protobuf import json_format

    found = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=with_defaults
    )
    fixed = _with_numbers(found)
    assert isinstance(fixed, dict)
    return fixed


def _with_numbers(node: object, name: str = "") -> object:
    if name in _STRING_MAPS:
        return node
    if isinstance(node, dict):
        return {key: _with_numbers(value, key) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_numbers(value, name) for value in node]
    if isinstance(node, str) and name in INT64_FIELDS:
        return int(node)
    return node


def _first_word_of(text: str, error: type[Exception]) -> tuple[int, int]:
    """Line and column of the word that first makes the parser raise `error`; every longer beginning raises it too."""
    from google.protobuf import text_format

    low, high = 0, len(text)
    while high - low > 1 and len(text) <= _MAX_SEARCHED:
        middle = (low + high) // 2
        try:
            text_format.Parse(text[:middle], _message_class()())
        except text_format.ParseError:
            low = middle
        except error:
            high = middle
        else:
            low = middle
    start = len(text[:high].rstrip(_WORD))
    return text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)


def _explain(message: str, text: str, file: str, line: int, column: int) -> str:
    lines = text.split("\n")
    offending = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    what = re.sub(r"^[0-9]+:[0-9]+ : ", "", message)
    if 0 < line <= len(lines):  # the parser quotes the line too, but not in every message
        what = what.removeprefix(f"'{lines[line - 1]}': ")
    what = what if len(what) <= _MAX_WHAT else f"{what[:_MAX_WHAT]}…"
    shown = f", in {offending[:120]!r}" if offending else ", at the end of the file"
    hint = ""
    if offending.startswith("//") or (lines[line - 1 : line] and lines[line - 1][column - 1 : column] == "/"):
        hint = " (comments start with #, not with //)"
    elif "${" in offending:
        hint = " (an unfilled ${…} placeholder: this file is a template)"
    return f"{file}:{line}:{column}: {what.rstrip('.')}{shown}{hint}"
