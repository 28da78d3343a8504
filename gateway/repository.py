"""The model repository as operators see it: load and unload on every live worker of a model's groups, and the index.

Loads nothing itself and asks for no permission: the doors check the caller's role. A load counts as done when every
worker that could load the model did; one that failed is told with its reason, and what it served goes on serving.

Source: Triton, docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import structlog

from contract.envelope import BadEnvelope, pack, unpack
from contract.errors import (
    BrokerAway,
    DeadlineExceeded,
    Draining,
    HeadraceError,
    InvalidInput,
    ModelFailed,
    NotFound,
    NotSupported,
    NoWorker,
    TooLarge,
    Unavailable,
    from_wire,
)
from contract.messages import BlobRef, ControlReply, ControlRequest, WorkerBeat
from contract.subjects import check_name, worker_control_subject
from gateway.core import IndexEntry
from gateway.registry import Registry
from gateway.router import Router
from transport.base import Disconnected, NoResponders, StreamFull, Transport, TransportError

MAX_CONFIG_BYTES: Final = 256 * 1024
"""It travels in one message; no sane config is longer."""
UPLOAD_TIMEOUT_S: Final = 60.0

log = structlog.get_logger("gateway.repository")


class Repository:
    """What `POST /v2/repository/…` does. One per gateway."""

    def __init__(
        self, transport: Transport, registry: Registry, router: Router, *, gateway: str, timeout_s: float
    ) -> None:
        self._transport = transport
        self._registry = registry
        self._router = router
        self._gateway = gateway
        self._timeout_s = timeout_s

    async def load(
        self, model: str, *, service: str = "", config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load it, or load it anew; returns when it serves on every worker. `config` is Triton's JSON form of a config
        and `files` are paths below the model's folder; both replace what the repository has until the next load.

        Raises:
            InvalidInput: a config or a path that can't be, or a model that fails to load with what was sent.
            NotFound: no worker has such a model.  Forbidden: overrides are off.
            NotSupported: the workers are not in explicit mode.
            ModelFailed: it fails to load; gives the reason.
            NoWorker, Draining, BrokerAway, DeadlineExceeded, TooLarge.
        """
        check_name(model, "model name")
        if files and not config:
            raise InvalidInput("files are sent without a config, which must come with them")
        if config and len(config.encode()) > MAX_CONFIG_BYTES:
            raise TooLarge(f"config has {len(config.encode())} bytes, at most {MAX_CONFIG_BYTES} are allowed")
        beats = self._who_could_load(service, model, is_new=bool(config))
        blob = await self._upload(files) if files else None
        try:
            await self._ask_all(beats, ControlRequest("load", model, config or "", blob))
        finally:
            if blob is not None:
                self._transport.purge_blob(blob)

    async def unload(
        self,
        model: str,
        *,
        service: str = "",
        unload_dependents: bool = False,  # noqa: ARG002 - Triton's parameter
    ) -> None:
        """Unload it everywhere: what runs is answered, what waits ends with 503.

        No model here depends on another, so `unload_dependents` has nothing to add.

        Raises:
            NotFound: no worker serves it or has it.
            NotSupported, NoWorker, Draining, BrokerAway, DeadlineExceeded: as `load`.
        """
        check_name(model, "model name")
        beats = [b for b in self._beats(service, model) if _serves(b, model) or model in b.unloaded]
        if not beats:
            raise NotFound(f"model {model!r} is not known")
        await self._ask_all(beats, ControlRequest("unload", model))

    def index(self, *, service: str = "", ready: bool = False) -> list[IndexEntry]:
        """Every model and version that the service's workers know, by name; with `ready` only those that serve."""
        found = [
            IndexEntry(card.config.name, state.version, state.state, state.reason)
            for _, card in self._router.models(service)
            for state in card.versions
            if state.state == "READY" or not ready
        ]
        if not ready:
            shown = {entry.name for entry in found}
            for (group, model), reason in self._registry.unloaded().items():
                if model not in shown and group in self._router.groups_of(service, model):
                    shown.add(model)
                    found.append(IndexEntry(model, "", "UNAVAILABLE" if reason else "", reason))
        return sorted(found, key=lambda e: (e.name, int(e.version) if e.version.isdecimal() else -1))

    # ------------------------------------------------------------------ who

    def _beats(self, service: str, model: str) -> list[WorkerBeat]:
        groups = self._router.groups_of(service, model)
        beats = [b for b in self._registry.workers() if b.group in groups and b.state != "draining"]
        if not beats:
            raise NoWorker(f"no live worker could serve model {model!r}")
        if not any(b.control_mode == "explicit" for b in beats):
            raise NotSupported("loading and unloading on request needs model_control_mode: explicit in the workers")
        return sorted(
            (b for b in beats if b.control_mode == "explicit"), key=lambda b: (groups.index(b.group), b.worker)
        )

    def _who_could_load(self, service: str, model: str, *, is_new: bool) -> list[WorkerBeat]:
        """The workers that serve it or have it in their repository; one that nobody has goes to the first group."""
        beats = self._beats(service, model)
        having = [b for b in beats if _serves(b, model) or model in b.unloaded]
        if having or not is_new:
            # A folder that was made a moment ago is in nobody's heartbeat yet: everybody is asked.
            return having or beats
        return [b for b in beats if b.group == beats[0].group]

    # ------------------------------------------------------------------ asking

    async def _upload(self, files: Mapping[str, bytes]) -> BlobRef:
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                return await self._transport.put_blob(self._gateway, [msgspec.msgpack.encode(dict(files))])
        except StreamFull:
            size = sum([len(data) for data in files.values()])
            raise TooLarge(f"files have {size} bytes, more than the broker's payload memory has room for") from None
        except (TransportError, TimeoutError) as e:
            raise BrokerAway(f"the files could not be sent: {e or 'time-out'}") from None

    async def _ask_all(self, beats: Sequence[WorkerBeat], request: ControlRequest) -> None:
        answers = await asyncio.gather(*(self._ask(beat, request) for beat in beats))
        errors = [error for error in answers if error is not None]
        log.info(
            "model-control", action=request.action, model=request.model, num_workers=len(beats), num_failed=len(errors)
        )
        # Of workers without the model only one group's worth of silence is expected: it counts if nobody had it.
        serious = [e for e in errors if not isinstance(e, NotFound)] or (errors if len(errors) == len(beats) else [])
        if serious:
            raise serious[0]

    async def _ask(self, beat: WorkerBeat, request: ControlRequest) -> HeadraceError | None:
        subject = worker_control_subject(beat.worker)
        try:
            payload = await self._transport.request(subject, pack(request), self._timeout_s)
            reply, _ = unpack(ControlReply, payload)
        except NoResponders:
            return Unavailable(f"worker {beat.worker} went away before it could {request.action} {request.model!r}")
        except Disconnected:
            return BrokerAway("the message broker can't be reached")
        except (TransportError, BadEnvelope) as e:
            words = (
                f"worker {beat.worker} did not answer within {self._timeout_s:g} s; it may still {request.action} it"
            )
            log.warning("control-unanswered", worker=beat.worker, error=str(e))
            return DeadlineExceeded(words)
        if not reply.error:
            return None
        return from_wire(reply.code, reply.error) if reply.code else _untyped(reply.error)


def _untyped(error: str) -> HeadraceError:
    return Draining(error) if "draining" in error else ModelFailed(error)


def _serves(beat: WorkerBeat, model: str) -> bool:
    return any(card.config.name == model for card in beat.models)
