"""`headrace infer`: values typed on a command line to a request, an answer to lines. Over HTTP or NATS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from contract.errors import HeadraceError, InvalidInput, NotFound, Unavailable, from_wire
from contract.subjects import DoorAddress
from contract.tensors import Array
from headrace.client import Client
from headrace.oip import InputSpec, Result, as_tensor, decode_answer, encode_json

if TYPE_CHECKING:
    from transport.settings import BrokerSettings

CONNECT_S = 2.0
MAX_SHOWN = 8
"""Numbers of an output that are printed for people; JSON has all."""


def parse_inputs(
    model: str, pairs: Sequence[str], texts: Sequence[str], specs: Mapping[str, InputSpec]
) -> dict[str, Any]:
    """`name=value` pairs and texts as values by input name.

    Raises:
        InvalidInput: nothing given, no such input, no `=`, or texts for a model without exactly one BYTES input.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInput(f"--input {pair!r} has the form --input NAME=VALUE")
        if name not in specs:
            raise InvalidInput(f"the model has no input {name!r}, it has {', '.join(sorted(specs))}")
        is_text = specs[name].datatype == "BYTES" and not value.startswith("[")
        values[name] = value if is_text else _typed(value)
    if texts:
        names = [n for n, s in specs.items() if s.datatype == "BYTES" and n not in values]
        if len(names) != 1:
            raise InvalidInput(f"--text needs a model with one BYTES input, this one has {len(names)}: use --input")
        values[names[0]] = list(texts)
    if specs and not values:
        raise InvalidInput(f"nothing to ask: {_takes(model, specs)}")
    return values


def _takes(model: str, specs: Mapping[str, InputSpec]) -> str:
    # A leading -1 is the batch, which nobody types.
    shapes = {n: list(s.shape[1:] if len(s.shape) > 1 and s.shape[0] == -1 else s.shape) for n, s in specs.items()}
    told = ", ".join(f"{n} ({s.datatype} {shapes[n]})" for n, s in specs.items())
    has_one_text = [s.datatype for s in specs.values()].count("BYTES") == 1
    return f"model {model} takes {told}; give {'--text TEXT or ' if has_one_text else ''}--input NAME=VALUE"


def known_models(broker: BrokerSettings) -> list[str]:
    """Names of the models that workers offer; empty where the broker does not answer."""
    from headrace.cluster import look
    from transport.base import TransportError
    from transport.connection import connect

    async def ask() -> list[str]:
        transport = await connect(broker, name="headrace-infer")
        try:
            beats = (await look(transport)).workers.values()
        finally:
            await transport.close()
        return sorted({card.config.name for beat in beats for card in beat.models})

    try:
        return asyncio.run(ask())
    except (TransportError, OSError):
        return []


def ask_http(
    url: str, model: str, pairs: Sequence[str], texts: Sequence[str], *, version: str, timeout_s: float, key: str
) -> Result:
    """The answer of the gateway at `url`."""
    with Client(url, key=key, timeout_s=timeout_s) as client:
        values = parse_inputs(model, pairs, texts, client.input_specs(model, version))
        return client.infer(model, values, version=version)


def ask_nats(broker_url: str, model: str, pairs: Sequence[str], texts: Sequence[str], *, timeout_s: float) -> Result:
    """The answer through the NATS door, as tenant and service `default`."""
    return asyncio.run(_ask_nats(broker_url, model, pairs, texts, timeout_s))


async def _ask_nats(
    broker_url: str, model: str, pairs: Sequence[str], texts: Sequence[str], timeout_s: float
) -> Result:
    from headrace.cluster import look
    from transport.base import NoResponders, TransportError
    from transport.connection import connect
    from transport.settings import BrokerSettings

    subject = DoorAddress("default", "default", model).subject
    try:
        transport = await connect(
            BrokerSettings(servers=[broker_url], connect_timeout_s=CONNECT_S), name="headrace-infer"
        )
    except (TransportError, OSError) as e:
        raise Unavailable(str(e) or type(e).__name__) from None
    try:
        try:
            offered = [c for b in (await look(transport)).workers.values() for c in b.models]
            cards = [c for c in offered if c.config.name == model]
            if not cards:
                known = sorted({c.config.name for c in offered})
                raise NotFound(f"no worker on {broker_url} offers model {model!r}{known_text(known)}")
            config = cards[0].config
            batch = (-1,) if config.max_batch_size else ()
            specs = {i.name: InputSpec(i.name, i.datatype, (*batch, *i.dims)) for i in config.inputs}
            values = parse_inputs(model, pairs, texts, specs)
            tensors = {n: (specs[n].datatype, as_tensor(v, specs[n])) for n, v in values.items()}
            body = json.dumps(encode_json(tensors)).encode()
            answer = await transport.request(subject, body, timeout_s)
        finally:
            await transport.close()
    except NoResponders:
        raise Unavailable(f"no gateway listens on {subject} at {broker_url}") from None
    except (TransportError, OSError) as e:
        raise Unavailable(f"{broker_url}: {e}") from None
    return _read_answer(answer)


def _read_answer(answer: bytes) -> Result:
    found = json.loads(answer)
    if "error" in found:
        raise _error(found)
    return decode_answer(answer, None)


def _error(found: Mapping[str, Any]) -> HeadraceError:
    return from_wire(str(found.get("code", "internal-error")), str(found["error"]))


def lines_of(result: Result, *, as_json: bool) -> Iterable[str]:
    """An answer as JSON, or a line per output."""
    if as_json:
        plain = {name: _plain(_shortest(array).tolist()) for name, array in result.outputs.items()}
        yield json.dumps({"model": result.model, "version": result.version, "id": result.id, "outputs": plain})
        return
    width = max((len(name) for name in result.outputs), default=0)
    for name, array in result.outputs.items():
        yield f"{name:<{width}}  {_for_people(array)}"


def known_text(names: Sequence[str]) -> str:
    """The end of a sentence about an unknown model."""
    return f"; known: {', '.join(names)}" if names else ""


def _for_people(array: Array) -> str:
    if array.dtype == object or array.size <= MAX_SHOWN:
        return json.dumps(_plain(_shortest(array).tolist()), ensure_ascii=False)
    first = json.dumps(_shortest(array.reshape(-1)[:MAX_SHOWN]).tolist())
    return f"{first[:-1]}, … ({array.size} values)]"


def _shortest(array: Array) -> Array:
    """Small floats as the shortest numbers that mean them: 0.1, not 0.10000000149011612."""
    return array.astype(str).astype(np.float64) if array.dtype in (np.float16, np.float32) else array


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _typed(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
