"""The HTML report of a stored run: one offline file, made from the result folder alone."""

from simserve.report.write import write_report

__all__ = ["write_report"]
