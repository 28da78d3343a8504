"""Messages in, micro-batches through a model, messages out. Knows nothing of gateways but their messages."""
