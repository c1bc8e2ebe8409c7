"""The report: one self-contained HTML file that needs no network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.nearest import choice
from fedmix.report.baseline import chosen
from fedmix.report.files import write
from fedmix.report.gallery import galleries
from fedmix.report.groups import by_data
from fedmix.report.load import RunRecord
from fedmix.report.section import Section, rules, section
from fedmix.report.series import STYLES, look
from fedmix.report.svg import Chart
from fedmix.report.tables import Table


@dataclass(frozen=True)
class Lead:
    """A table and charts that a page shows before those of the runs, such as a paper's."""

    title: str
    warnings: Sequence[str]
    table: Table
    notes: Sequence[str]
    charts: Sequence[Chart]


def write_html(
    runs: Sequence[RunRecord],
    path: Path | str,
    lead: Lead | None = None,
    baseline: str | None = None,
) -> None:
    """Write the report on these runs.

    Args:
        runs: The runs.
        path: The file.
        lead: The first section.
        baseline: The algorithm, or the label of a row, with which others are compared; a reader
            can choose another. By default FedAvg.

    Raises:
        BadInput: The path cannot be written, or no run is of that baseline.
    """
    write(Path(path), page(runs, lead, baseline).encode())


def page(runs: Sequence[RunRecord], lead: Lead | None = None, baseline: str | None = None) -> str:
    """Return the report as text; the arguments are those of `write_html`."""
    from markupsafe import Markup

    apart = by_data(runs)
    if baseline and not any(chosen(groups, baseline) for groups in apart.values()):
        known = dict.fromkeys(run.algorithm for run in runs)
        raise BadInput(f"no run is of {baseline!r}, the baseline; {choice(baseline, known)}")
    sections = [
        section(f"data-{number}", name, apart[name], baseline)
        for number, name in enumerate(sorted(apart), 1)
    ]
    script = resource("page.js")
    return filled(
        resource("page.html.j2"),
        title=f"fedmix: {lead.title if lead else _title(list(apart))}",
        lead=lead,
        policy=_policy(script),
        css=Markup(resource("page.css") + _styles()),
        rules={one.id: Markup(rules(one)) for one in sections},
        script=Markup(script),
        facts=Markup(_facts(sections)),
        runs=runs,
        sections=sections,
        galleries=galleries([group for groups in apart.values() for group in groups]),
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


def _title(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} data sets"


def _policy(script: str) -> str:
    """Return the content security policy: run this script, no other, and fetch nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'"
    )


def _styles() -> str:
    """Return a rule for each style of a line."""
    return "".join(f".k{i} {{ {look(i)} }}\n" for i in range(STYLES))


def _facts(sections: Sequence[Section]) -> str:
    """Return what the script needs as JSON; no character in it can end the script element."""
    facts = {
        "looks": [look(i) for i in range(STYLES)],
        "against": {one.id: one.against for one in sections},
    }
    text = json.dumps(facts, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
