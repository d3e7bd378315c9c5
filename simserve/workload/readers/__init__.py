"""Trace formats: one module each, registered by its decorator."""
