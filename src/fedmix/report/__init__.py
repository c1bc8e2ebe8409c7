"""Finished and unfinished runs side by side: a table, a picture, and one page that works offline."""

from fedmix.report.curves import draw
from fedmix.report.load import RunRecord, load_runs
from fedmix.report.page import Lead, write_html
from fedmix.report.results import Table, table

__all__ = ["Lead", "RunRecord", "Table", "draw", "load_runs", "table", "write_html"]
