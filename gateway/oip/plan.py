"""What a model takes, checked: names, datatypes, ranks, dimensions and rows of a request's inputs. Reads no payload.

A request whose inputs look like ones that were accepted before is accepted by one dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from contract.errors import InvalidInput
from contract.messages import TensorHead
from contract.model_config import ModelConfig, TensorSpec
from contract.tensors import byte_size, num_elements
from contract.text import TEXT_INPUT, takes_text, text_specs
from gateway.oip.explain import check_counts
from gateway.oip.json_numbers import Pack, packer
from gateway.oip.request import InputJson

MAX_LOOKS: Final = 512
"""Different sets of shapes remembered per model; texts of every length up to 512 tokens fit."""
MAX_PLANS: Final = 1024
"""Model configs remembered; each beat of a worker may bring a new object for the same model."""
MAX_ELEMENTS: Final = 2**40
"""Elements of one tensor; far beyond any body, and far below where sizes overflow."""


class Accepted:
    """Inputs that fit the model: rows, wire heads, and the function that packs each one's JSON values."""

    def __init__(
        self, rows: int, heads: tuple[TensorHead, ...], packs: tuple[Pack, ...], has_bytes: bool, num_bytes: int
    ) -> None:
        """`num_bytes`: of all tensors, where none is BYTES."""
        self.rows = rows
        self.heads = heads
        self.packs = packs
        self.has_bytes = has_bytes
        self.num_bytes = num_bytes


class Plan:
    """One model's checks, and the looks of requests that passed them."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.output_names = frozenset(spec.name for spec in config.outputs)
        self._specs = {spec.name: spec for spec in config.inputs}
        self._required = frozenset(spec.name for spec in config.inputs if not spec.is_optional)
        self._accepted: dict[tuple[tuple[str, str, tuple[int, ...]], ...], Accepted] = {}

    def accept(self, inputs: Sequence[InputJson]) -> Accepted:
        """Check the inputs against the config.

        Raises:
            InvalidInput: names the input, the field, what it is and what the model wants.
        """
        look = tuple([(tensor.name, tensor.datatype, tensor.shape) for tensor in inputs])
        known = self._accepted.get(look)
        if known is not None:
            return known
        accepted = self._check(inputs)
        if len(self._accepted) >= MAX_LOOKS:
            self._accepted.clear()
        self._accepted[look] = accepted
        return accepted

    def _check(self, inputs: Sequence[InputJson]) -> Accepted:
        check_counts(inputs, None)
        specs, required = self._wanted(inputs)
        seen: set[str] = set()
        for tensor in inputs:
            spec = specs.get(tensor.name)
            if spec is None:
                names = ", ".join(repr(name) for name in specs) or "none"
                raise InvalidInput(f"input {tensor.name[:128]!r}: model {self.config.name!r} has inputs {names}")
            if tensor.name in seen:
                raise InvalidInput(f"input {tensor.name!r} is given twice")
            seen.add(tensor.name)
            if tensor.datatype != spec.datatype:
                raise InvalidInput(
                    f"input {tensor.name!r}: datatype is {tensor.datatype[:64]!r}, the model wants {spec.datatype!r}"
                )
            check_shape(self.config, spec, tensor.shape)
        if not required <= seen:
            missing = ", ".join(repr(spec.name) for spec in self.config.inputs if spec.name in required - seen)
            raise InvalidInput(f"input {missing}: missing from inputs, model {self.config.name!r} requires it")
        rows = self._rows(inputs)
        heads = tuple(TensorHead(t.name, t.datatype, t.shape) for t in inputs)
        packs = tuple(packer(h.datatype, num_elements(h.shape)) for h in heads)
        has_bytes = any(h.datatype == "BYTES" for h in heads)
        return Accepted(rows, heads, packs, has_bytes, sum(byte_size(h.datatype, h.shape) or 0 for h in heads))

    def _wanted(self, inputs: Sequence[InputJson]) -> tuple[Mapping[str, TensorSpec], frozenset[str]]:
        """Inputs to hold these against, and which must be there: the model's own, or `text` in place of its ids."""
        text = next((tensor for tensor in inputs if tensor.name == TEXT_INPUT), None)
        if text is None or not takes_text(self.config):
            return self._specs, self._required
        specs = {spec.name: spec for spec in text_specs(self.config, len(text.shape))}
        return specs, frozenset(spec.name for spec in specs.values() if not spec.is_optional)

    def _rows(self, inputs: Sequence[InputJson]) -> int:
        if not self.config.max_batch_size or not inputs:
            return 1
        first = inputs[0]
        for other in inputs[1:]:
            if other.shape[0] != first.shape[0]:
                raise InvalidInput(
                    f"input {other.name!r}: shape has batch dimension {other.shape[0]}, "
                    f"input {first.name!r} has {first.shape[0]}; they must be equal"
                )
        return first.shape[0]


def plan_of(config: ModelConfig) -> Plan:
    """The plan of a config object; a plan keeps its config alive, so that no other object can have its identity."""
    plan = _plans.get(id(config))
    if plan is None:
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        plan = _plans[id(config)] = Plan(config)
    return plan


_plans: dict[int, Plan] = {}


def wanted_shape(config: ModelConfig, spec: TensorSpec) -> list[int]:
    """A tensor's shape as callers see it: with the batch dimension, -1 for any size."""
    return [-1, *spec.dims] if config.max_batch_size else list(spec.dims)


def check_shape(config: ModelConfig, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raises InvalidInput where a request's shape does not fit the model's."""
    wanted = wanted_shape(config, spec)
    if len(shape) != len(wanted):
        raise InvalidInput(
            f"input {spec.name!r}: shape {_text(shape)} has rank {len(shape)}, "
            f"the model wants rank {len(wanted)}: {wanted}"
        )
    if min(shape, default=0) < 0:
        raise InvalidInput(
            f"input {spec.name!r}: shape is {_text(shape)}, {_text((min(shape),))[1:-1]} is not a size a request may "
            f"give; the model wants {wanted}, where -1 stands for any size"
        )
    for size, allowed in zip(shape, wanted, strict=True):
        if allowed not in (-1, size):
            raise InvalidInput(f"input {spec.name!r}: shape is {_text(shape)}, the model wants {wanted}")
    if num_elements(shape) > MAX_ELEMENTS:
        raise InvalidInput(f"input {spec.name!r}: shape {_text(shape)} has over {MAX_ELEMENTS} elements")
    if config.max_batch_size and not 1 <= shape[0] <= config.max_batch_size:
        raise InvalidInput(
            f"input {spec.name!r}: shape {_text(shape)} has batch dimension {shape[0]}, "
            f"model {config.name!r} takes 1 to {config.max_batch_size}"
        )


def _text(shape: tuple[int, ...]) -> str:
    shown = ", ".join(str(n) if n.bit_length() < 256 else "…" for n in shape[:16])
    return f"[{shown}{', …' if len(shape) > 16 else ''}]"
