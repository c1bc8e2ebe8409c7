"""The tables of settings, of presets, and of the paper's tables."""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from fedmix.experiment.explained import SECTIONS, Explanation, builder, explanations
from fedmix.experiment.presets import PRESETS, experiment
from fedmix.paper import TABLES

MORE = {
    "data": "Federations are [here](federation.md).",
    "updates": "It is [one guarantee](privacy.md#one-guarantee-for-all-that-leaves-clients).",
    "head": "The statistics are [here](method.md#the-algorithms-and-their-names).",
    "engine": "Speed is [here](speed.md), several processes [here](scale.md).",
}
ROWS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "`model.name`": lambda run: run["fedmix"]["model"]["name"],
    "`data.clients`, N": lambda run: run["fedmix"]["data"]["clients"],
    "`training.clients_per_round`, K": lambda run: run["fedmix"]["training"]["clients_per_round"],
    "`training.epochs`, E": lambda run: run["fedmix"]["training"]["epochs"],
    "`training.batch_size`, B": lambda run: run["fedmix"]["training"]["batch_size"],
    "`training.lr`": lambda run: run["fedmix"]["training"]["lr"],
    "`training.lr_decay`": lambda run: run["fedmix"]["training"]["lr_decay"],
    "`training.momentum`": lambda run: run["fedmix"]["training"]["momentum"],
    "`objective.lam` of naivemix": lambda run: run["naivemix"]["objective"]["lam"],
    "`objective.lam` of fedmix": lambda run: run["fedmix"]["objective"]["lam"],
    "`objective.mu` of fedprox": lambda run: run["fedprox"]["objective"]["mu"],
    "`rounds`": lambda run: run["fedmix"]["rounds"],
    "`evaluate_every`": lambda run: run["fedmix"]["evaluate_every"],
    "`target`": lambda run: run["fedmix"]["target"],
}


def all_settings() -> str:
    """All sections, each with a table, or with one for each name that it can have."""
    lines = ["<style>.md-typeset td:first-child code { white-space: nowrap }</style>", ""]
    every = explanations()
    for section, about in SECTIONS.items():
        said = f"{about} {MORE[section]}" if section in MORE else about
        lines += [f"## {f'[{section}]' if section else 'The run'}", "", _filled(said), ""]
        of_section = [setting for setting in every if setting.section == section]
        for name in dict.fromkeys(setting.of for setting in of_section):
            if name:
                title = f"### {section}.name = “{name}” {{ #{section}-{name} }}"
                lines += [title, "", _filled(_summary(builder(section, name))), ""]
            lines += ["| setting | what it does |", "|---|---|"]
            lines += [_row(setting) for setting in of_section if setting.of == name]
            lines.append("")
    return "\n".join(lines).strip()


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _summary(build: Callable[..., Any] | None) -> str:
    return " ".join((inspect.getdoc(build) or "").split("\n\n")[0].split())


def _row(setting: Explanation) -> str:
    shown = ", required" if setting.default == "required" else f"; `{setting.default}`"
    meaning = setting.meaning.replace("|", "\\|")
    return f"| `{setting.path}`<br>{setting.kind}{shown} | {meaning} |"


def presets() -> str:
    """What each preset sets, one column per preset."""
    runs = {
        name: {a: experiment(name, a).values() for a in ("naivemix", "fedmix", "fedprox")}
        for name in PRESETS
    }
    lines = [f"| setting | {' | '.join(runs)} |", "|---" * (len(runs) + 1) + "|"]
    lines += [
        f"| {label} | {' | '.join(f'{value(run)}' for run in runs.values())} |"
        for label, value in ROWS.items()
    ]
    return "\n".join(lines)


def paper() -> str:
    """Every table of the paper that can be run: its name, rows, columns and number of runs."""
    lines = ["| table | what it is | runs a seed | rows; columns |", "|---|---|---|---|"]
    for table in (table.select(None, None) for table in TABLES.values()):
        names = "; ".join(
            ", ".join(f"`{part.name}`" for part in parts) for parts in (table.rows, table.columns)
        )
        runs = len(list(table.experiments()))
        lines.append(f"| `{table.name}`<br>{table.source} | {table.title} | {runs} | {names} |")
    return "\n".join(lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "all": all_settings,
    "presets": presets,
    "paper": paper,
}
