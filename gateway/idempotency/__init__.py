"""Requests with an `Idempotency-Key`: run once, answered as often as asked."""
