"""What a tenant's own user of the broker may publish and hear. Pure; headrace/nats_config.py writes it down."""

from __future__ import annotations

from contract.subjects import encode_token


def client_permissions(tenant: str) -> tuple[list[str], list[str]]:
    """(publish, subscribe): everything that is allowed; the broker refuses all else."""
    token = encode_token(tenant)
    return [f"infer.{token}.>"], [f"_INBOX.{token}.>", f"tokens.{token}.>"]
