"""What exchanged means are worth: the runs behind docs/beyond.md as one file, and its tables.

    python benchmarks/beyond.py pack new.jsonl RUNS:NAME ...
    python benchmarks/beyond.py audit audit.jsonl DATA
    python benchmarks/beyond.py join docs/results/beyond.jsonl new.jsonl audit.jsonl ...
    python benchmarks/beyond.py show docs/results/beyond.jsonl --plot docs/images/frontier.svg

RUNS is a folder of `fedmix reproduce beyond` and `frontier`, and NAME one of MACHINES. The file has
a line for each machine and one for each run: study, column and row (which give the settings:
`STUDIES[study].experiment(row, column, seed)`), seed, the run's name, score (mean of the tests in
the last quarter of the rounds, in %; null where the run ended before) and how it ended, if so.
`audit` attacks the exchanges of some cells of `frontier` (seed 0) and writes how well a curious
server tells samples that are in the means from others; DATA is a folder with the hub's files.
`join` adds lines that are not there yet. `make results` writes the tables into the page.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fedmix.core.files import write_whole
from fedmix.paper import STUDIES
from fedmix.paper.base import Part
from fedmix.paper.beyond import WITH_HEAD
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
    "cpu-second": {
        "device": "cpu",
        "machine": "one core of a shared x86-64 machine",
        "python": "3.11",
        "torch": "2.13.0+cpu",
        "commit": "ca61875",
    },
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
CANDIDATES = (
    "normalised", "fedrs", "naivemix-all", "drawn-5", "drawn-normalised-5",
    *(f"head-{row}" for row in WITH_HEAD),
)  # fmt: skip
TESTED = ("classes", "dirichlet", "cifar100", "digits", "femnist")
EPSILONS = tuple(column.name for column in STUDIES["frontier"].columns)

Store = dict[tuple[str, str, str], dict[int, Result]]
Recovered = dict[tuple[str, str], dict[str, Any]]


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
                    measured = STUDIES[study].measured(row, column)
                    line["score"] = round(measured.of(found.record, "late"), 3)
                if found.failure is not None:
                    line[found.failure.kind] = found.failure.round
                yield line


AUDITED = {"drawn": SIZES[:-1], "dim": ("all", "20")}  # λ does not matter to what is exchanged
TRIED = ("3", "10", "100", "1000", "none")


def audit(file: Path, root: Path) -> None:
    """Write the server's attack on membership for each audited use, size and ε."""
    from fedmix.core.rng import stream
    from fedmix.privacy.audit import Grid
    from fedmix.privacy.audit.grid import ground
    from fedmix.privacy.audit.membership import candidates, scores
    from fedmix.privacy.audit.rates import rates
    from fedmix.privacy.audit.scene import stage

    table = STUDIES["frontier"]
    lines = list(recovered(file).values()) if file.exists() else []
    done = {(line["audit"], line["column"]) for line in lines}
    tried = len(TRIED) * sum(map(len, AUDITED.values()))
    for use, sizes in AUDITED.items():
        first = table.experiment(f"{use}-all", "none")
        base = first.build_exchange()
        assert base is not None
        grid = Grid(base)
        known = ground(first.build_data(root), first.seed, grid)
        for size, epsilon in product(sizes, TRIED):
            if (f"{use}-{size}", epsilon) in done:
                continue
            how = table.experiment(f"{use}-{size}", epsilon).build_exchange()
            assert how is not None
            scene = stage(known.data, how, known.seed)
            suspects = candidates(scene, known.others, stream(known.seed, "audit"))
            found = scores(scene.uploads, suspects, known.population, scene.owner).client
            member = suspects.member
            rate = rates(found[member], found[~member], 1 - 0.05 / tried)
            lines.append({
                "audit": f"{use}-{size}", "column": epsilon, "auc": round(rate.auc, 4),
                "low": round(rate.auc_low, 4), "high": round(rate.auc_high, 4),
                "found": round(rate.tpr, 4),
            })  # fmt: skip
            print(lines[-1], flush=True)
            write_whole(file, "".join(json.dumps(line) + "\n" for line in lines).encode())


def join(file: Path, others: Sequence[Path]) -> None:
    """Add the lines of other files that are not in a file yet."""
    lines = [line for path in (file, *others) for line in path.read_text().splitlines()]
    write_whole(file, "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode())


def recovered(file: Path) -> Recovered:
    """Return what the audit found, by row of the frontier and ε."""
    lines = map(json.loads, file.read_text().splitlines())
    return {(line["audit"], line["column"]): line for line in lines if "audit" in line}


def read(file: Path) -> Store:
    """Return the results of a file by study, column and row, and by seed."""
    store: Store = defaultdict(dict)
    for text in file.read_text().splitlines():
        line = json.loads(text)
        if "study" not in line:  # of a machine, or of the audit
            continue
        score = math.nan if line["score"] is None else line["score"]
        kinds: tuple[Literal["diverged", "collapsed"], ...] = ("diverged", "collapsed")
        ended = [kind for kind in kinds if kind in line]
        failure = Failure(ended[0], line[ended[0]], "") if ended else None
        store[line["study"], line["column"], line["row"]].setdefault(
            line["seed"], Result(line["seed"], score, failure)
        )
    return store


def cell(store: Store, column: str, row: str, study: str = "beyond") -> Compared:
    """Return the results of a row and a column; seeds that were not run are left out."""
    table = STUDIES[study]
    first, second = (
        next(part for part in some if part.name == name)
        for some, name in ((table.rows, row), (table.columns, column))
    )
    found = store.get((study, column, row), {})
    results = tuple(found[seed] for seed in SHOWN if seed in found)
    return Compared(first, second, ACCURACY, None, results)


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
    "drawn-10", "drawn-5", "drawn-2", "drawn-1", "drawn-0.2-5", "drawn-0.2-2",
    "restricted-drawn-5", "drawn-normalised-5", "drawn-normalised-2", "globalmix",
    *(f"head-{row}" for row in WITH_HEAD),
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


def claims(
    store: Store, rows: Sequence[str] = CLAIMED, against: Sequence[str] = AGAINST
) -> list[Difference]:
    """Return the differences that are tested, corrected for their number."""
    return corrected(
        [
            Difference(*paired(cell(store, column, row), cell(store, column, other)))
            for column in TESTED
            for row in rows
            for other in against
            if row != other
        ]
    )


def everywhere(store: Store) -> list[Difference]:
    """Return what is compared with FedAvg to find what to recommend, corrected by number."""
    return claims(store, CANDIDATES, ("fedavg",))


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
    return _tested(claims(store))


def everywhere_table(store: Store) -> str:
    """Return the candidates' differences from FedAvg with intervals and p."""
    return _tested(everywhere(store))


def balance_table(store: Store) -> str:
    """Return what balance on means adds to FedAvg and to NaiveMix, with intervals and p."""
    pairs = (("balance-all", "fedavg"), ("balance-naivemix-all", "naivemix-all"))
    cells = [(cell(store, "classes", row), cell(store, "classes", less)) for row, less in pairs]
    return _tested(corrected([Difference(*paired(*both)) for both in cells]))


def _tested(differences: Sequence[Difference]) -> str:
    rows = []
    for one in differences:
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
    "everywhere": everywhere_table,
    "balance": balance_table,
    "frontier": frontier_table,
}


def recovered_table(found: Recovered) -> str:
    """Return the AUC of the server, and the share found at one false alarm in 1,000, by M and ε."""
    heads = ["no noise" if e == "none" else f"ε = {e}" for e in TRIED]
    rows = []
    for use, sizes in AUDITED.items():
        for size in sizes:
            title = f"M = {size}" + (", clip 10" if use == "dim" else "")
            lines = [found.get((f"{use}-{size}", epsilon)) for epsilon in TRIED]
            told = [f"{of['auc']:.3f} ({100 * of['found']:.1f} %)" if of else "" for of in lines]
            rows.append([title, *told])
    return markdown(["", *heads], rows)


def tables(file: Path) -> dict[str, str]:
    """Return the tables of the page by name."""
    store = read(file)
    return {name: made(store) for name, made in TABLES.items()} | {
        "recovered": recovered_table(recovered(file))
    }


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


FAMILIES = (
    (("drawn", "dim"), "NaiveMix, λ drawn"),
    (("naivemix",), "NaiveMix, λ = 0.1"),
    (("head",), "head from statistics"),
)


def draw(store: Store, found: Recovered, path: Path) -> None:
    """Draw accuracy against ε, and against what an attacker finds out."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from fedmix.report.files import write_figure

    mpl.rcParams["svg.hashsalt"] = "fedmix"
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _by_epsilon(left, store)
    _by_auc(right, store, found)
    for axes, where in ((left, "lower right"), (right, "center right")):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc=where)
    left.set_ylabel("test accuracy, %")
    write_figure(path, figure)


def _by_epsilon(axes: Any, store: Store) -> None:
    """Draw the best size of means at each ε."""
    from fedmix.report.series import COLOURS

    at = [2e4 if e == "none" else float(e) for e in EPSILONS]
    for (uses, title), colour in zip(FAMILIES, COLOURS, strict=False):
        points = [best(store, uses, e) for e in EPSILONS]
        known = [(x, p) for x, p in zip(at, points, strict=True) if p is not None]
        if not known:
            continue
        axes.errorbar(
            [x for x, _ in known],
            [p[0] for _, p in known],
            yerr=[p[1] for _, p in known],
            marker="o",
            color=colour,
            capsize=3,
            label=title if uses == ("head",) else f"{title}, best M: all, unless named",
        )
        for x, (mean, _, row) in known:
            if row.endswith("all") or uses == ("head",):
                continue
            axes.annotate(
                f"M = {row.rpartition('-')[2]}", (x, mean), (-5, 5), color=colour,
                textcoords="offset points", fontsize=7, ha="right",
            )  # fmt: skip
    for (row, title), colour in zip(ENDS, COLOURS[len(FAMILIES) :], strict=False):
        end = cell(store, "classes", row).spread.mean
        assert end is not None
        axes.axhline(end, color=colour, linestyle="--", linewidth=1)
        above = -10 if row == "globalmix" else 3
        axes.annotate(
            title, (at[0], end), (0, above), color=colour, textcoords="offset points", fontsize=8
        )
    axes.set_xscale("log")
    axes.set_xticks(at, ["no noise" if e == "none" else e for e in EPSILONS])
    axes.minorticks_off()
    axes.set_xlabel("ε of the means (δ = 1e-5, one sample replaced)")


def _by_auc(axes: Any, store: Store, found: Recovered) -> None:
    """Draw every audited exchange; FedAvg and Global Mixup are the ends, by definition."""
    from fedmix.report.series import COLOURS

    for (uses, title), colour in zip(FAMILIES[:2], COLOURS, strict=False):
        points = []
        for (row, epsilon), line in found.items():
            use, _, size = row.rpartition("-")
            for mine in uses:
                mean = cell(store, epsilon, f"{mine}-{size}", "frontier").spread.mean
                alike = mine == use or (mine, use) == ("naivemix", "drawn")
                if alike and mean is not None:
                    points.append((line["auc"], mean, epsilon, row))
        for filled in (False, True):
            some = [p for p in points if (p[2] == "none") == filled]
            axes.scatter(
                [p[0] for p in some], [p[1] for p in some], s=26, edgecolors=colour,
                facecolors=colour if filled else "none",
                label=f"{title}, {'no noise' if filled else 'noise'}",
            )  # fmt: skip
        for auc, mean, epsilon, row in points:
            if epsilon == "none" and uses[0] == "drawn" and row.startswith("drawn"):
                axes.annotate(
                    f"M = {row.removeprefix('drawn-')}", (auc, mean), (-6, 0), color=colour,
                    textcoords="offset points", fontsize=7, ha="right", va="center",
                )  # fmt: skip
    for row, at, title in (("fedavg", 0.5, "FedAvg"), ("globalmix", 1.0, "Global Mixup")):
        mean = cell(store, "classes", row).spread.mean
        assert mean is not None
        axes.plot([at], [mean], marker="D", color=COLOURS[5], linestyle="none")
        side = 8 if row == "fedavg" else -8
        axes.annotate(
            title, (at, mean), (side, 4), color=COLOURS[5], textcoords="offset points", fontsize=8,
            ha="left" if row == "fedavg" else "right",
        )  # fmt: skip
    axes.set_xlabel("AUC of a curious server that asks who is in the means\n(0.5: a coin; 1: sure)")


def main() -> None:
    """Pack runs, audit, join files, show tables or draw the frontier."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("what", choices=["pack", "audit", "join", "show"])
    ask.add_argument("file", type=Path)
    ask.add_argument("more", nargs="*", help="RUNS:NAME to pack, a folder, or files")
    ask.add_argument("--plot", type=Path)
    told = ask.parse_args()
    if told.what == "pack":
        pack(told.file, told.more)
        return
    if told.what == "audit":
        [root] = map(Path, told.more)
        audit(told.file, root)
        return
    if told.what == "join":
        join(told.file, [Path(name) for name in told.more])
        return
    for name, table in tables(told.file).items():
        print(f"\n{name}\n\n{table}")
    if told.plot:
        draw(read(told.file), recovered(told.file), told.plot)


if __name__ == "__main__":
    main()
