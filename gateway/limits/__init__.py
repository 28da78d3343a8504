"""Limits: what a caller may use, decided at once over all gateways. See docs/limits.md."""
