"""The sections of a page about one run."""
