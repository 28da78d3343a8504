"""One call's inputs as several internal requests, a bounded number at a time, gathered in the caller's order.

A portion that fails is asked again input by input, so that the error names the one at fault; what is our state, not the
input's fault, ends the call at once.

Invariants: when this returns or raises, none of its requests is open (tests/integration/test_openai_routes.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from contract.errors import HeadraceError, InvalidInput, ModelFailed, QueueFull, TooLarge
from contract.principal import Principal
from contract.tensors import Array
from gateway.core import Answer, Core, InferRequest, Outcome, Target
from gateway.openai.asked import Inputs
from gateway.openai.embedder import Embedder, Vectors
from gateway.openai.errors import at_input

MAY_BE_AN_INPUTS: Final = (InvalidInput, ModelFailed, TooLarge)
"""Errors that one input among several may be to blame for."""
MAX_OPEN: Final = 32
"""Requests of one call at a time: enough for a dozen instances, and other callers get in between."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and until when."""

    principal: Principal
    request_id: str
    deadline_s: float
    traceparent: str = ""


@dataclass(slots=True)
class Embedded:
    """All of a call's vectors, in its order."""

    vectors: Array
    """[inputs, width], FP32"""
    num_tokens: int = 0
    num_truncated: int = 0


class Part(NamedTuple):
    """An answered portion."""

    indices: list[int]
    version: str
    vectors: Vectors


@dataclass(slots=True)
class Fanout:
    """One call."""

    core: Core
    target: Target
    embedder: Embedder
    caller: Caller
    inputs: Inputs
    name: Callable[[int], str]
    """An input, as errors call it."""
    _parts: list[Part] = field(default_factory=list)
    _num_asked: int = 0
    _num_working: int = 0

    async def run(self) -> Embedded:
        """Embed everything, with one version of the model.

        Raises:
            HeadraceError: the first failure; where it is an input's, it names the input.
        """
        await self._gather(self.embedder.portions(self.inputs))
        newest = max((part.version for part in self._parts), key=int)
        stale = [part for part in self._parts if part.version != newest]
        if stale:  # another version became ready in the midst of the call: vectors of two are not to be compared
            self._parts = [part for part in self._parts if part.version == newest]
            self.target = replace(self.target, version=newest)
            await self._gather([part.indices for part in stale])
        return self._joined()

    def _joined(self) -> Embedded:
        found = {
            index: vector
            for part in self._parts
            for index, vector in zip(part.indices, part.vectors.array, strict=True)
        }
        if len({len(vector) for vector in found.values()}) != 1:
            raise ModelFailed(f"model {self.embedder.model!r} answered vectors of unlike length")
        return Embedded(
            np.stack([found[index] for index in range(len(self.inputs))]),
            sum([part.vectors.num_tokens for part in self._parts]),
            sum([part.vectors.num_truncated for part in self._parts]),
        )

    async def _gather(self, portions: list[list[int]]) -> None:
        waiting = deque(portions)
        self._num_working = min(MAX_OPEN, len(portions))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._num_working):
                    group.create_task(self._work(waiting))
        except BaseExceptionGroup as failed:
            errors, others = failed.split(HeadraceError)
            if errors is None or others is not None:
                raise
            raise errors.exceptions[0] from None

    async def _work(self, waiting: deque[list[int]]) -> None:
        """Portions one after another. Where the model's queue takes no more, the call makes do with fewer at a time."""
        while waiting:
            indices = waiting.popleft()
            try:
                await self._portion(indices)
            except QueueFull:
                if self._num_working == 1:
                    raise
                answered = {index for part in self._parts for index in part.indices}
                waiting.append([index for index in indices if index not in answered])
                break
        self._num_working -= 1

    async def _portion(self, indices: list[int]) -> None:
        try:
            part = await self._ask(indices)
        except HeadraceError as e:
            if not isinstance(e, MAY_BE_AN_INPUTS):
                raise
            if len(indices) == 1:
                raise at_input(e, self.name(indices[0])) from None
            for index in indices:
                await self._portion([index])
        else:
            self._parts.append(part)

    async def _ask(self, indices: list[int]) -> Part:
        tensors = self.embedder.tensors([self.inputs[index] for index in indices])  # type: ignore[arg-type]  # all alike
        caller, number = self.caller, self._num_asked
        self._num_asked += 1
        payload_bytes = sum([len(part) for part in tensors.data])
        outputs = (self.embedder.output.name,)
        request = InferRequest(len(indices), tensors.heads, tensors.data, tensors.sizes, payload_bytes, outputs=outputs)
        request_id = f"{caller.request_id}.{number}" if number else caller.request_id
        request.ask(caller.principal, request_id, caller.deadline_s, caller.traceparent)
        answer = await ask(self.core, self.target, request)
        vectors = self.embedder.vectors(answer, len(indices), tensors.num_tokens)
        return Part(indices, answer.version, vectors)


async def ask(core: Core, target: Target, request: InferRequest) -> Answer:
    """One request's answer; raises its error. Cancelled, it cancels the request."""
    ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if not ended.done():
            ended.set_result(outcome)

    pending = core.submit(target, request, done)
    try:
        outcome = await ended
    except asyncio.CancelledError:
        pending.cancel()
        raise
    if isinstance(outcome, HeadraceError):
        raise outcome
    return outcome
