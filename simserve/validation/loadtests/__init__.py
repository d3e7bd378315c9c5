"""Readers of what load generators measured, one file per format; all give `LoadTest`s.

To add a format: a module here with a class that has `sniff` and `read`, registered under its name.
"""
