"""`fedmix settings`."""

import json
import sys
from collections.abc import Iterator, Sequence
from textwrap import fill, indent
from typing import TYPE_CHECKING, Annotated

import typer

from fedmix.cli import options
from fedmix.core.errors import BadInput
from fedmix.core.nearest import nearest

if TYPE_CHECKING:
    from fedmix.experiment.explained import Explanation

app = typer.Typer()


@app.command(epilog="Examples:  fedmix settings exchange    fedmix settings objective.lam")
def settings(
    prefix: Annotated[
        str, typer.Argument(help="The beginning of their paths, such as exchange or training.lr.")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Every setting of a run, as --set and files take it: type, default and meaning."""
    from fedmix.experiment.explained import SECTIONS, explanations
    from fedmix.runs.progress import console

    every = explanations()
    chosen = [one for one in every if one.path.startswith(prefix)]
    if not chosen:
        raise BadInput(f"no setting begins with {prefix!r}; {_meant(prefix, every)}")
    if as_json:
        print(json.dumps([one._asdict() for one in chosen], indent=1, ensure_ascii=False))
        return
    out = console(sys.stdout)
    for section in dict.fromkeys(one.section for one in chosen):
        names = list(dict.fromkeys(o.of for o in every if o.section == section if o.of))
        out.print(f"[{section}]" if section else "The run", style="bold")
        known = f" Names are {', '.join(names)}." if names else ""
        out.print(_plain(SECTIONS[section]) + known, end="\n\n")
        for head, meaning in _told([one for one in chosen if one.section == section], names):
            out.print(fill(head, out.width, subsequent_indent="        "), soft_wrap=True)
            out.print(indent(fill(meaning, out.width - 4), "    "), soft_wrap=True)
        out.print()


def _told(chosen: Sequence["Explanation"], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is to be said of each setting: path, type and defaults; and its meaning.

    Args:
        chosen: The settings of a section.
        names: All names that the section can have.
    """
    alike: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for path, of, kind, default, meaning in chosen:
        defaults = alike.setdefault((path, kind, meaning), {})
        defaults.setdefault(default, []).append(of)
    for (path, kind, meaning), defaults in alike.items():
        everywhere = sum(map(len, defaults.values())) == max(len(names), 1)
        if everywhere and len(defaults) == 1:
            shown = next(iter(defaults))
        else:
            shown = ", ".join(f"{value} ({', '.join(of)})" for value, of in defaults.items())
        yield _plain(f"{path}  {kind}; {shown}"), _plain(meaning)


def _meant(prefix: str, every: Sequence["Explanation"]) -> str:
    """Say which setting a wrong prefix may have meant."""
    paths = sorted({one.path for one in every})
    same = [path for path in paths if path.rpartition(".")[2] == prefix]
    meant = " or ".join(same) or nearest(prefix, [*paths, *{one.section for one in every}])
    return f"did you mean {meant}?" if meant else "'fedmix settings' lists all"


def _plain(markdown: str) -> str:
    return markdown.replace("`", "")
