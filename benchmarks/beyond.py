"""What exchanged means are worth: the runs behind docs/beyond.md as one file, and its tables.

    python benchmarks/beyond.py pack docs/results-beyond.jsonl RUNS:NAME ...
    python benchmarks/beyond.py show docs/results-beyond.jsonl --plot docs/images/frontier.svg
    python benchmarks/beyond.py page docs/results-beyond.jsonl docs/beyond.md

RUNS is a folder of `fedmix reproduce beyond` and `frontier`, and NAME one of MACHINES. The file has
a line for each machine and one for each run: study, column and row (which give the settings:
`STUDIES[study].experiment(row, column, seed)`), seed, the run's name, score (mean of the tests in
the last quarter of the rounds, in %; null where the run ended before) and how it ended, if so.
`page` writes the tables between the page's markers.
"""

import argparse
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmix.core.files import write_whole
from fedmix.paper import STUDIES
from fedmix.paper.base import Part
from fedmix.paper.comparison import Compared, Difference, Result, corrected
from fedmix.paper.metrics import ACCURACY
from fedmix.paper.outcome import outcome
from fedmix.runs.failure import Failure

H200 = {
    "device": "cuda",
    "machine": "one NVIDIA H200, 14 runs at a time under MPS, tf32",
    "python": "3.12.3",
    "torch": "2.11.0+cu130",
}
MACHINES: dict[str, dict[str, str]] = {
    "h200-first": {**H200, "commit": "36866e6"},
    "h200-second": {**H200, "commit": "411abcb"},
    "cpu": {
        "device": "cpu",
        "machine": "one core of a shared x86-64 machine",
        "python": "3.11",
        "torch": "2.13.0+cpu",
        "commit": "411abcb",
    },
}
SEEDS = range(10)
SHOWN = range(5)  # of which the tables are made
SIZES = ("all", "20", "10", "5", "2", "1")
COLUMNS = ("classes", "dirichlet", "cifar100", "digits", "femnist", "femnist-long")
CLAIMED = ("drawn-5", "drawn-2")
AGAINST = ("fedavg", "fedrs", "normalised", "naivemix-all")
TESTED = ("classes", "dirichlet", "cifar100", "digits", "femnist")
EPSILONS = tuple(column.name for column in STUDIES["frontier"].columns)

Store = dict[tuple[str, str, str], dict[int, Result]]


def pack(file: Path, sources: Sequence[str]) -> None:
    """Write the scores of all runs in these folders, each given as FOLDER:MACHINE."""
    lines: list[dict[str, Any]] = []
    for source in sources:
        folder, _, name = source.rpartition(":")
        device = MACHINES[name]["device"]
        lines.append({"name": name, **MACHINES[name]})
        for study, table in STUDIES.items():
            if study in ("beyond", "frontier"):
                lines += _packed(study, Path(folder), name, device, table.rows, table.columns)
    write_whole(file, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _packed(
    study: str, folder: Path, machine: str, device: str, rows: Sequence[Part], columns: Any
) -> Iterator[dict[str, Any]]:
    for column in columns:
        for row in rows:
            for seed in SEEDS:
                run = STUDIES[study].experiment(row.name, column.name, seed)
                run = run.with_settings({"engine.device": device})
                found = outcome(run, folder)
                if not found.known:
                    continue
                line: dict[str, Any] = {
                    "study": study, "column": column.name, "row": row.name, "seed": seed,
                    "score": None, "run": run.id, "on": machine,
                }  # fmt: skip
                if found.record is not None:
                    line["score"] = round(ACCURACY.of(found.record, "late"), 3)
                if found.failure is not None:
                    line[found.failure.kind] = found.failure.round
                yield line


def read(file: Path) -> Store:
    """Return the results of a file by study, column and row, and by seed."""
    store: Store = defaultdict(dict)
    for text in file.read_text().splitlines():
        line = json.loads(text)
        if "study" not in line:
            continue
        score = math.nan if line["score"] is None else line["score"]
        ended = [kind for kind in ("diverged", "collapsed") if kind in line]
        failure = Failure(ended[0], line[ended[0]], "") if ended else None
        store[line["study"], line["column"], line["row"]].setdefault(
            line["seed"], Result(line["seed"], score, failure)
        )
    return store


def cell(store: Store, column: str, row: str, study: str = "beyond") -> Compared:
    """Return the results of a row and a column; seeds that were not run are left out."""
    table = STUDIES[study]
    parts = [
        next(part for part in some if part.name == name)
        for some, name in ((table.rows, row), (table.columns, column))
    ]
    found = store.get((study, column, row), {})
    results = tuple(found[seed] for seed in SHOWN if seed in found)
    return Compared(*parts, ACCURACY, None, results)


def text(of: Compared) -> str:
    """Return the mean and deviation, with the number of seeds if it is not that of most cells."""
    if not of.results:
        return ""
    return of.text() + (f" ({len(of.results)})" if len(of.results) != len(SHOWN) else "")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


MAIN = (
    "fedavg", "fedrs", "fedlc", "normalised", "scaffold", "fedadam", "fedavgm", "localmix",
    "naivemix-all", "fedmix-all", "restricted-all", "balance-all", "drawn-all", "drawn-20",
    "drawn-10", "drawn-5", "drawn-2", "drawn-1", "restricted-drawn-5", "drawn-normalised-2",
    "globalmix",
)  # fmt: skip


def main_table(store: Store) -> str:
    """Return what came out on each data set."""
    titles = {c.name: c.title for c in STUDIES["beyond"].columns}
    rows = [
        [cell(store, "classes", row).row.title, *(text(cell(store, c, row)) for c in COLUMNS)]
        for row in MAIN
    ]
    return markdown(["", *(titles[c] for c in COLUMNS)], rows)


USES = (
    "naivemix", "fedmix", "drawn", "drawn-0.2", "drawn-0.5", "drawn-2", "drawn-each",
    "drawn-batch", "drawn-logits", "restricted", "restricted-drawn", "balance", "balance-drawn",
    "drawn-normalised", "drawn-avgm",
)  # fmt: skip


def uses_table(store: Store) -> str:
    """Return all uses of means on CIFAR-10 with 2 classes, by the size of the means."""
    rows = []
    for use in USES:
        of = [cell(store, "classes", f"{use}-{size}") for size in SIZES]
        title = of[0].row.title.removesuffix(", M = all")
        rows.append([title, *map(text, of)])
    return markdown(["", *(f"M = {size}" for size in SIZES)], rows)


def claims(store: Store) -> list[Difference]:
    """Return the differences that are tested, corrected for their number."""
    return corrected(
        [
            Difference(*paired(cell(store, column, row), cell(store, column, other)))
            for column in TESTED
            for row in CLAIMED
            for other in AGAINST
        ]
    )


def paired(a: Compared, b: Compared) -> tuple[Compared, Compared]:
    """Return two cells with the seeds that both have."""
    both = {r.seed for r in a.results} & {r.seed for r in b.results}
    one, other = (
        Compared(
            c.row,
            c.column,
            c.metric,
            c.paper,
            tuple(r for r in c.results if r.seed in both),
        )
        for c in (a, b)
    )
    return one, other


def claims_table(store: Store) -> str:
    """Return the differences with intervals and p."""
    rows = []
    for one in claims(store):
        tested = one.test()
        values = one.differences
        if not values or tested is None:
            continue
        low, high, _ = tested
        p = 1.0 if one.corrected is None else one.corrected
        said = f"{sum(values) / len(values):+.1f}", f"{low:+.1f} to {high:+.1f}"
        rows.append(
            [
                f"{one.first.column.title}: {one.first.row.title}",
                one.second.row.title,
                *said,
                str(len(values)),
                f"**{p:.2g}**" if p < 0.05 else f"{p:.2g}",
            ]
        )
    head = ["", "less", "points", "95 % interval", "seeds", "p by Holm's method"]
    return markdown(head, rows)


FRONTIER = tuple(row.name for row in STUDIES["frontier"].rows)


def frontier_table(store: Store) -> str:
    """Return the accuracy by ε, use and size of means."""
    rows = []
    for row in FRONTIER:
        of = [cell(store, epsilon, row, "frontier") for epsilon in EPSILONS]
        if any(c.results for c in of):
            rows.append([of[0].row.title, *map(text, of)])
    heads = ["no noise" if e == "none" else f"ε = {e}" for e in EPSILONS]
    return markdown(["", *heads], rows)


TABLES = {
    "main": main_table,
    "uses": uses_table,
    "claims": claims_table,
    "frontier": frontier_table,
}


def tables(store: Store) -> dict[str, str]:
    """Return the tables of the page by name."""
    return {name: made(store) for name, made in TABLES.items()}


def filled(page: str, store: Store) -> str:
    """Return the page with its tables written anew between their markers."""
    for name, table in tables(store).items():
        marks = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        page, count = re.subn(
            f"{marks[0]}.*?{marks[1]}",
            lambda _, table=table, marks=marks: f"{marks[0]}\n\n{table}\n\n{marks[1]}",
            page,
            flags=re.DOTALL,
        )
        if count != 1:
            raise SystemExit(f"the page has {count} places for the table {name}")
    return page


def best(store: Store, uses: Sequence[str], epsilon: str) -> tuple[float, float, str] | None:
    """Return mean, deviation and row of the best size of means at an ε, of three seeds or more."""
    found = []
    for row in FRONTIER:
        of = cell(store, epsilon, row, "frontier")
        spread = of.spread
        if row.rpartition("-")[0] in uses and len(of.results) > 2 and spread.mean is not None:
            found.append((spread.mean, spread.deviation or 0.0, row))
    return max(found, default=None)


ENDS = (("globalmix", "Global Mixup (raw data)"), ("fedrs", "FedRS (no exchange)"),
        ("fedavg", "FedAvg"))  # fmt: skip


def draw(store: Store, path: Path) -> None:
    """Draw accuracy against ε."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from fedmix.report.files import write_figure
    from fedmix.report.series import COLOURS

    mpl.rcParams["svg.hashsalt"] = "fedmix"
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    at = [2e4 if e == "none" else float(e) for e in EPSILONS]
    for (uses, title), colour in zip(
        ((("drawn", "dim"), "λ drawn"), (("naivemix",), "λ = 0.1")), COLOURS, strict=False
    ):
        points = [best(store, uses, e) for e in EPSILONS]
        known = [(x, p) for x, p in zip(at, points, strict=True) if p is not None]
        axes.errorbar(
            [x for x, _ in known],
            [p[0] for _, p in known],
            yerr=[p[1] for _, p in known],
            marker="o",
            color=colour,
            capsize=3,
            label=f"NaiveMix, {title}, best M: all, unless named",
        )
        for x, (mean, _, row) in known:
            if row.endswith("all"):
                continue
            axes.annotate(
                f"M = {row.rpartition('-')[2]}", (x, mean), (-5, 5), color=colour,
                textcoords="offset points", fontsize=7, ha="right",
            )  # fmt: skip
    for (row, title), colour in zip(ENDS, COLOURS[2:], strict=False):
        mean = cell(store, "classes", row).spread.mean
        assert mean is not None
        axes.axhline(mean, color=colour, linestyle="--", linewidth=1)
        above = -10 if row == "globalmix" else 3
        axes.annotate(
            title, (at[0], mean), (0, above), color=colour, textcoords="offset points", fontsize=8
        )
    axes.set_xscale("log")
    axes.set_xticks(at, ["no noise" if e == "none" else e for e in EPSILONS])
    axes.minorticks_off()
    axes.set_xlabel("ε of the means (δ = 1e-5, one sample replaced)")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    write_figure(path, figure)


def main() -> None:
    """Pack runs, show tables, draw the frontier or fill in a page."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("what", choices=["pack", "show", "page"])
    ask.add_argument("file", type=Path)
    ask.add_argument("more", nargs="*", help="RUNS:NAME to pack, or the page")
    ask.add_argument("--plot", type=Path)
    told = ask.parse_args()
    if told.what == "pack":
        pack(told.file, told.more)
        return
    store = read(told.file)
    if told.what == "page":
        [page] = map(Path, told.more)
        write_whole(page, filled(page.read_text(), store).encode())
        return
    for name, table in tables(store).items():
        print(f"\n{name}\n\n{table}")
    if told.plot:
        draw(store, told.plot)


if __name__ == "__main__":
    main()
