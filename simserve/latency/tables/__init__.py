"""Kernel measurements: where they lie, how they are read, and what lies between the measured points."""
