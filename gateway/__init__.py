"""The front door: HTTP and NATS in, admission, messages out. Knows nothing of workers but their messages."""
