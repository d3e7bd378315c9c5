"""The contract of a measured format: recognise a file by its content, and read the load tests in it."""

from __future__ import annotations

from typing import Protocol

from simserve.registry import Registry
from simserve.validate.importers.json_file import JsonFile
from simserve.validate.importers.load_test import LoadTest


class Importer(Protocol):
    """One format. Stateless."""

    def sniff(self, file: JsonFile) -> bool:
        """Return whether the file is of this format, judged by the keys of its first record."""
        ...

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return the load tests in the file; raises `TraceError` naming place, key and value."""
        ...


IMPORTERS: Registry[type[Importer]] = Registry("format of measurements", "simserve.validate.importers")
