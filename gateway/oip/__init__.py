"""The Open Inference Protocol's request and response bodies, JSON and binary, for every door that speaks them. Pure."""
