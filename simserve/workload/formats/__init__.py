"""Trace formats that can be written: one module each, registered by its decorator."""
