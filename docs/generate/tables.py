"""Tables of published runs: scores, differences, and grids of settings by algorithm."""

from collections.abc import Mapping, Sequence
from typing import Any

from docs.generate.runs import BEST, LAST, LAST_TEN, TO_TARGET, Row, between, difference, records
from fedmix.paper import TABLES
from fedmix.paper.base import TITLES as NAMES
from fedmix.paper.metrics import Metric

BF16 = {"engine.precision": "bf16"}
GPU = {"engine.device": "cuda"}
CPU = {"engine.device": "cpu"}
TITLES = NAMES | {"fedmix-logits": "FedMix, logits"}
FOUR = ("fedavg", "naivemix", "fedmix", "fedmix-logits")
EARLY = (between(55, 100), between(105, 150), between(255, 300))
COLUMNS = (LAST_TEN, LAST, BEST, TO_TARGET)
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "femnist": "FEMNIST",
    "shakespeare": "Shakespeare",
}
EXACT = {"cifar10": {"objective.lam": 0.05}, "femnist": {"objective.lam": 0.2}}


def row(data: str, algorithm: str, title: str = "") -> Row:
    """Return the row of an algorithm with a preset's settings, and the paper's number of it."""
    at = ("shakespeare", "accuracy") if data == "shakespeare" else ("main", data)
    printed = (at[0], algorithm, at[1]) if algorithm in TABLES[at[0]].paper else None
    return Row(title or TITLES[algorithm], data, algorithm, {}, printed)


def changed(data: str, title: str, algorithm: str, *settings: Mapping[str, Any]) -> Row:
    """Return the row of an algorithm with other settings than the preset's."""
    return Row(title, data, algorithm, {k: v for some in settings for k, v in some.items()})


def exact(title: str, data: str) -> Row:
    """Return the row of Global Mixup with the λ that FedMix expands, instead of a drawn one."""
    paper = ("lambda", "globalmix", "0.05") if data == "cifar10" else None
    settings = {"objective.alpha": None, **EXACT.get(data, {})}
    return Row(title, data, "globalmix", settings, paper)


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def scores(rows: Sequence[Row], columns: Sequence[Metric] = COLUMNS) -> str:
    """Return a table of scores, with what the first one is for each seed in the fold-out."""
    theirs = any(one.theirs() for one in rows)
    lines = []
    for one in rows:
        cells = [one.title, str(len(one.runs)), *(one.cell(metric).text() for metric in columns)]
        paper = ", ".join(filter(None, (one.theirs(), one.theirs("-rounds"))))
        lines.append([*cells, paper] if theirs else cells)
    return f"{markdown(_head(columns, theirs=theirs), lines)}\n\n{records(rows, columns[0])}"


def differences(pairs: Sequence[tuple[Row, Row]], columns: Sequence[Metric]) -> str:
    """Return the differences of pairs of rows, with 95 % intervals and p of paired t-tests."""
    theirs = any(a.theirs() and b.theirs() for a, b in pairs)
    lines = []
    for a, b in pairs:
        seeds = len(difference(a, b, columns[-1]).differences)
        cells = [f"{a.title} − {b.title}", str(seeds), *(told(a, b, metric) for metric in columns)]
        lines.append([*cells, printed(a, b)] if theirs else cells)
    return markdown(_head(columns, theirs=theirs), lines)


def _head(columns: Sequence[Metric], *, theirs: bool) -> list[str]:
    return ["", "seeds", *(c.title for c in columns), *(["the paper"] if theirs else [])]


def told(a: Row, b: Row, metric: Metric, *, interval: bool = True) -> str:
    """Return the difference of two rows, such as `+0.8 (+0.1 to +1.4, p = 0.04)`."""
    of = difference(a, b, metric)
    if not of.differences:
        return "–"
    mean, tested = sum(of.differences) / len(of.differences), of.test()
    if tested is None:
        return signed(mean)
    low, high, p = tested
    between = f"{signed(low)} to {signed(high)}, " if interval else ""
    return f"{signed(mean)} ({between}p = {p:.2g})"


def signed(value: float) -> str:
    """Return a difference with its sign."""
    return f"{value:+.1f}".replace("-", "−")


def printed(a: Row, b: Row) -> str:
    """Return the difference of the paper's numbers, or nothing."""
    return signed(float(a.theirs()) - float(b.theirs())) if a.theirs() and b.theirs() else ""


def grid(
    rows: Mapping[str, Mapping[str, Any]], algorithms: Sequence[str], data: str, metric: Metric
) -> str:
    """Return a table of one number: settings by algorithm. What was not run stays empty."""
    lines, used = [], []
    for title, settings in rows.items():
        cells = []
        for algorithm in algorithms:
            named = f"{TITLES[algorithm]}, {title.partition(' (')[0]}"
            one = Row(named, data, algorithm, settings)
            if not one.runs:
                cells.append("")
                continue
            used.append(one)
            cells.append(one.cell(metric).text() + (f" ({n})" if (n := len(one.runs)) > 1 else ""))
        lines.append([title, *cells])
    head = ["", *(TITLES[algorithm] for algorithm in algorithms)]
    return f"{markdown(head, lines)}\n\n{records(used, metric)}"
