"""nats-server's users from the tenants file: what each direct client may publish and hear. Connects nowhere.

A tenant with a `broker_password_bcrypt` gets a user of its own name (in its subject form), which may publish to its own
doors and hear its own inbox and tokens: nothing else, so nothing under `$JS.API` and nobody else's subjects. Names in
subjects are encoded (contract/subjects.py), so that none can hold a dot or a wildcard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from contract.client_permissions import client_permissions
from contract.subjects import encode_token


class CannotWrite(Exception):
    """No configuration can be made of what was given."""


def users_text(own: Mapping[str, str], clients: Mapping[str, str]) -> str:
    """An `authorization` block for `include`. `own`: users of gateways and workers with their passwords, who may do
    everything; `clients`: tenants with the bcrypt hash of theirs.

    Raises:
        CannotWrite: a tenant's user would be one of `own`, or nobody is left to run the gateways.
    """
    if not own:
        raise CannotWrite("broker.user and broker.password_file must name the user of gateways and workers")
    lines = [
        f"    {{ user: {json.dumps(user)}, password: {json.dumps(own[user], ensure_ascii=False)} }}"
        for user in sorted(own)
    ]
    for tenant in sorted(clients):
        user = encode_token(tenant)
        if user in own:
            raise CannotWrite(f"tenant {tenant!r} would have the user of the gateways, {user!r}: rename one of them")
        publish, subscribe = client_permissions(tenant)
        allowed = f"publish: {{ allow: {json.dumps(publish)} }}, subscribe: {{ allow: {json.dumps(subscribe)} }}"
        lines.append(
            f"    {{ user: {json.dumps(user)}, password: {json.dumps(clients[tenant])}, permissions: {{ {allowed} }} }}"
        )
    return "authorization {\n  users: [\n" + "\n".join(lines) + "\n  ]\n}\n"
