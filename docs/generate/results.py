"""The tables of published runs, by name: those of several data sets, and all others."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from docs.generate import cifar, femnist
from docs.generate.others import others
from docs.generate.runs import BEST, LAST, LAST_TEN, TO_TARGET, difference
from docs.generate.tables import DATA, TITLES, exact, markdown, printed, row, scores, told

MAIN = {
    "globalmix": "Global Mixup (raw data)",
    "exact": "Global Mixup, FedMix's fixed λ",
    "fedmix": "FedMix",
    "fedmix-logits": "FedMix, logits",
    "naivemix": "NaiveMix",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "localmix": "LocalMix",
}
DEMO = ("fedavg", "fedmix-logits", "naivemix")
README = ("exact", "fedmix", "fedmix-logits", "naivemix", "fedavg")
PAIRS = (("naivemix", "fedavg"), ("fedmix", "naivemix"), ("fedmix-logits", "naivemix"))


def main(algorithms: Iterable[str] = MAIN) -> str:
    """Algorithms by data set, the paper's number in brackets."""
    lines = []
    for algorithm in algorithms:
        title = MAIN[algorithm]
        cells, seeds = [], []
        for data in DATA:
            one = exact(title, data) if algorithm == "exact" else row(data, algorithm, title)
            results = one.cell(LAST_TEN)
            failed = one.runs and all(result.failure for result in results.results)
            said = "fails" if failed else results.text() if one.runs else ""
            cells.append(f"{said} ({one.theirs()})" if said and one.theirs() else said)
            seeds.append(str(len(one.runs)) if one.runs else "–")
        lines.append([title, *cells, ", ".join(seeds)])
    return markdown(["", *DATA.values(), "seeds"], lines)


def short() -> str:
    """The differences that matter most, by data set."""
    lines = []
    for data, name in DATA.items():
        cells = []
        for first, second in PAIRS:
            a, b = row(data, first), row(data, second)
            seeds = len(difference(a, b, LAST_TEN).differences)
            count = f", {seeds} seed{'s' if seeds > 1 else ''}" if seeds else ""
            said = told(a, b, LAST_TEN, interval=False) if seeds else "does not train"
            paper = f"; the paper {theirs}" if (theirs := printed(a, b)) else ""
            cells.append(f"{said}{count}{paper}")
        lines.append([name, *cells])
    return markdown(["", *(f"{TITLES[a]} − {TITLES[b]}" for a, b in PAIRS)], lines)


def shakespeare() -> str:
    """The main setting of Shakespeare."""
    algorithms = ("naivemix", "fedmix-logits", "fedavg", "fedmix")
    return scores([row("shakespeare", algorithm) for algorithm in algorithms])


def first_run() -> str:
    """The runs of `fedmix compare digits`."""
    return scores(
        [row("digits", algorithm) for algorithm in DEMO], (LAST, BEST, LAST_TEN, TO_TARGET)
    )


PARTS: Mapping[str, Callable[[], str]] = {
    "main": main,
    "readme": partial(main, README),
    "short": short,
    "first-run": first_run,
    **cifar.PARTS,
    **femnist.PARTS,
    "shakespeare": shakespeare,
    "others": others,
}
