"""Scheduling policies: one file each, found by name (see `base`)."""
