"""An OIP request as its JSON says it and as the gateway uses it. Data only; decode.py makes the second from the first.

Unknown JSON fields are ignored, as Triton ignores them; unknown *parameters* reach the model.

Source: KServe OIP v2 "Inference Request JSON Object"; Triton's binary tensor data extension.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from contract.messages import ParameterValue, TensorHead


class InputJson(msgspec.Struct, gc=False):
    """One input tensor; its numbers are in `data`, or `binary_data_size` bytes of them lie behind the JSON."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    data: list[int | float | str | list[Any]] | msgspec.UnsetType = msgspec.UNSET
    """No booleans: that true is not taken for 1 costs nothing this way. LooseInputJson is for the rest."""
    parameters: dict[str, Any] | None = None


class LooseInputJson(InputJson, gc=False):
    """An input tensor whose values still have to be looked at one by one."""

    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class OutputJson(msgspec.Struct, gc=False):
    """One wanted output."""

    name: str
    parameters: dict[str, Any] | None = None


class RequestJson(msgspec.Struct, gc=False):
    """The whole JSON part of a request."""

    inputs: list[InputJson]
    id: str | None = None
    outputs: list[OutputJson] | None = None
    parameters: dict[str, Any] | None = None


class LooseRequestJson(msgspec.Struct, gc=False):
    """The same with inputs that may hold booleans, null and objects."""

    inputs: list[LooseInputJson]
    id: str | None = None
    outputs: list[OutputJson] | None = None
    parameters: dict[str, Any] | None = None


class OutputForm(msgspec.Struct, frozen=True):
    """Which outputs go back as raw bytes behind the JSON; `by_name` overrules the request's default."""

    is_binary: bool = False
    by_name: dict[str, bool] = {}


JSON_FORM: Final = OutputForm()
BINARY_FORM: Final = OutputForm(is_binary=True)


class DecodedRequest(msgspec.Struct, frozen=True):
    """A request's body, decoded and checked against its model's config."""

    rows: int
    heads: tuple[TensorHead, ...]
    data: list[bytes | memoryview]
    """Raw tensors in the order of `heads`; views of the body where it was binary."""
    sizes: tuple[int, ...] = ()
    """Bytes of each tensor where a BYTES tensor is among them, else empty."""
    payload_bytes: int = 0
    caller_id: str = ""
    priority: int = 0
    queue_timeout_us: int = 0
    outputs: tuple[str, ...] = ()
    parameters: dict[str, ParameterValue] = {}
    form: OutputForm = JSON_FORM
    classifications: tuple[int, ...] = ()
    """Beside `outputs`: how many of its best classes are wanted instead of each row, 0 for the row itself."""
