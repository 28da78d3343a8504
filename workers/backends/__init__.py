"""Engines behind one protocol."""
