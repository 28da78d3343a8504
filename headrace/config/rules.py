"""What values must hold between them; each key alone is checked by its type. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config.settings import HeadraceSettings


def broken_rules(settings: HeadraceSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    """(keys concerned, what is wrong), the likelier culprit first."""
    gateway, up = settings.gateway, settings.up
    if gateway.default_service not in gateway.services:
        known = ", ".join(gateway.services)
        text = f"{gateway.default_service!r} is not among gateway.services ({known})"
        yield ("gateway.default_service", "gateway.services"), text
    if gateway.default_timeout_ms > gateway.max_timeout_ms:
        text = f"{gateway.default_timeout_ms} is over gateway.max_timeout_ms ({gateway.max_timeout_ms})"
        yield ("gateway.default_timeout_ms", "gateway.max_timeout_ms"), text
    ports = {
        "gateway.http_port": gateway.http_port,
        "gateway.metrics_port": gateway.metrics_port,
        "up.broker_port": up.broker_port,
    }
    taken: dict[int, str] = {}
    for key, port in ports.items():
        if port and port in taken:
            yield (key, taken[port]), f"{port} is the port of {taken[port]} as well"
        taken.setdefault(port, key)
