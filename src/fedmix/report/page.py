"""The report: one self-contained HTML file that needs no network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedmix.report.figures import Chart, charts, heat_map
from fedmix.report.files import write
from fedmix.report.gallery import galleries
from fedmix.report.groups import Group, by_data, differing, grouped
from fedmix.report.load import RunRecord
from fedmix.report.results import Results
from fedmix.report.tables import Table

MAPS = 4
BLANK = "–"


@dataclass(frozen=True)
class Lead:
    """A table and charts that a page shows before those of the runs, such as a paper's."""

    title: str
    warnings: Sequence[str]
    table: Table
    notes: Sequence[str]
    charts: Sequence[Chart]


def write_html(runs: Sequence[RunRecord], path: Path, lead: Lead | None = None) -> None:
    """Write the report on these runs; `lead` is its first section.

    Raises:
        BadInput: The path cannot be written.
    """
    write(path, page(runs, lead).encode())


def page(runs: Sequence[RunRecord], lead: Lead | None = None) -> str:
    """Return the report as text."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    groups = grouped(runs)
    curves, maps = _curves(groups), _heat_maps(groups)
    scripts = [get_plotlyjs().replace("\r\n", "\n"), resource("page.js")]
    return filled(
        resource("page.html.j2"),
        title="fedmix: "
        f"{lead.title if lead else _common(groups, 'data.name') or 'several data sets'}",
        lead=lead,
        policy=_policy(scripts),
        css=Markup(resource("page.css")),
        scripts=[Markup(script) for script in scripts],
        figures=Markup(_figures([*(lead.charts if lead else []), *curves, *maps])),
        groups=groups,
        runs=runs,
        table=Results.of(groups).table(),
        charts=curves,
        maps=maps,
        sizes=_sizes(groups),
        galleries=galleries(groups),
        settings=_settings(groups),
        privacy=_privacy(groups),
    )


def resource(name: str) -> str:
    """Return a file of the page: its style sheet, its script or its template."""
    return resources.files("fedmix.report").joinpath(name).read_text("utf-8")


def filled(template: str, **values: Any) -> str:
    """Fill a template with values; they are escaped unless they are Markup."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(**values)


def _policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: run these scripts, no others, and fetch nothing."""
    digests = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    )
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'"
    )


def _figures(drawn: Sequence[Chart]) -> str:
    """Return JSON for a script element: no character in it can end the element."""
    figures = [
        {"data": chart.data, "layout": chart.layout, "height": chart.height} for chart in drawn
    ]
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _curves(groups: Sequence[Group]) -> list[Chart]:
    """Return the charts of each data set."""
    apart = by_data(groups)
    drawn = []
    for name, same in apart.items():
        more = f", {name}" if len(apart) > 1 else ""
        drawn += [
            replace(chart, title=chart.title + more) for chart in charts(same, Results.of(same))
        ]
    return drawn


def _common(groups: Sequence[Group], key: str) -> str | None:
    """Return the value of a setting if it is the same in all groups, else None."""
    values = {group.settings.get(key) for group in groups}
    return values.pop() if len(values) == 1 else None


def _settings(groups: Sequence[Group]) -> list[tuple[str, list[str], bool]]:
    """Return each setting: name, values by group, and whether they differ; these come first."""
    changed = differing([group.settings for group in groups])
    shared = sorted(set(groups[0].settings) - set(changed), key=lambda key: (key.count("."), key))
    return [
        (key, [group.settings.get(key, BLANK) for group in groups], key in changed)
        for key in [*changed, *shared]
    ]


def _dealt(groups: Sequence[Group]) -> list[tuple[list[Group], RunRecord]]:
    """Return, for each partition, the groups that use it and a run that records its clients."""
    ways: dict[frozenset[tuple[str, str]], list[Group]] = {}
    for group in groups:
        if any(run.clients for run in group.runs):
            way = frozenset((k, v) for k, v in group.settings.items() if k.startswith("data."))
            ways.setdefault(way, []).append(group)
    return [
        (same, next(run for group in same for run in group.runs if run.clients))
        for same in ways.values()
    ]


def _heat_maps(groups: Sequence[Group]) -> list[Chart]:
    dealt = [
        (same, run)
        for same, run in _dealt(groups)
        if run.clients and run.clients.counts is not None
    ]
    maps = []
    for same, run in dealt[:MAPS]:
        whose = "" if len(dealt) == 1 else f" of {', '.join(group.label for group in same)}"
        others = {member.seed for group in same for member in group.runs} - {run.seed}
        note = (
            f"Dealt out by seed {run.seed}; other seeds deal anew."
            if others
            else f"Dealt out by seed {run.seed}."
        )
        chart = heat_map(run, f"Clients and classes{whose}", note)
        assert chart is not None
        maps.append(chart)
    return maps


def _sizes(groups: Sequence[Group]) -> list[str]:
    """Return a sentence on the clients of each partition."""
    sentences, dealt = [], _dealt(groups)
    for same, run in dealt:
        assert run.clients is not None
        sizes, whose = (
            run.clients.sizes,
            f"{', '.join(group.label for group in same)}: " if len(dealt) > 1 else "",
        )
        few, median, many, total = sizes.min(), np.median(sizes), sizes.max(), sizes.sum()
        sentences.append(
            f"{whose}{len(sizes)} clients with {few:.0f} to {many:.0f} samples (median "
            f"{median:.0f}), {total:.0f} in all."
        )
    return sentences


def _privacy(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Return each sentence on privacy, and the labels of its groups."""
    said: dict[str, list[str]] = {}
    for group in groups:
        for sentence in dict.fromkeys(
            run.privacy or "Not stated yet: a run states it when it ends." for run in group.runs
        ):
            said.setdefault(sentence, []).append(group.label)  # seeds may differ
    return list(said.items())
