"""Importers: other people's kernel measurements, turned into profile tables."""
