"""How messages travel. The only package that imports `nats`. The in-memory twin behaves the same."""
