"""Compare finished and unfinished runs: a table, a picture, and one HTML page for offline use."""

from fedmix.report.curves import draw
from fedmix.report.load import RunRecord, load_runs
from fedmix.report.page import Lead, write_html
from fedmix.report.results import Results, results_of
from fedmix.report.tables import Table

__all__ = [
    "Lead",
    "Results",
    "RunRecord",
    "Table",
    "draw",
    "load_runs",
    "results_of",
    "write_html",
]
