"""The first screen of a page as tiles: a few numbers, each with a chart of a finger's width."""

from simserve.report.tiles.tile import Tile

__all__ = ["Tile"]
