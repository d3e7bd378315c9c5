"""Readers of what load generators measured, one file each; all give `Outcome` columns."""
