"""Layouts by name, one file each."""
