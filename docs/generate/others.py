"""Public attempts at the paper's table, beside the paper's numbers and ours."""

from docs.generate.runs import LAST_TEN
from docs.generate.tables import markdown, row
from fedmix.paper import TABLES

THREE = ("fedavg", "naivemix", "fedmix")
OURS = "here"
PAPER = "the paper"
THESIS = "a thesis, three seeds (kvu228/FedBR, `paper/thesis/05_chuong5.md` at cb5fd3a)"
XYF = "xyfJASON/Repro-Federated-Learning, `FedMix/assets/results.csv` at 4570e41, after round 100"
FLOWER = "Flower, pull request 2213"
FEDBR = "FedBR (Guo et al., ICML 2023), table 1, as the thesis prints it"
SMALL = "CIFAR-10, 10 clients, a small CNN, Dirichlet"
ROWS: tuple[tuple[str, ...], ...] = (
    (PAPER, "CIFAR-10, 2 classes, 500 rounds", "cifar10"),
    (OURS, "the same, momentum 0.9", "cifar10"),
    (f"{FLOWER}, README at 933e3ae", "the same, momentum 0.9", "80.96", "81.21", "81.59"),
    ("the same at f7aea03", "the same, no momentum", "65.16", "61.30", "62.91"),
    ("the same at 1b4c061", "the same, no momentum", "62.77", "67.39", "63.09"),
    (THESIS, "the same, no momentum", "68.69, 67.42, 64.74", "", "66.50, 66.47, 62.31"),
    (PAPER, "CIFAR-100, 500 rounds", "cifar100"),
    (OURS, "the same, momentum 0.9", "cifar100"),
    ("Flower, 933e3ae", "the same, momentum 0.9", "48.37", "52.55", "52.93"),
    ("Flower, 1b4c061", "the same, no momentum", "27.47", "29.75", "28.90"),
    (PAPER, "FEMNIST, 200 rounds", "femnist"),
    (OURS, "a biased part of it, momentum 0.9", "femnist"),
    ("Flower, f7aea03", "the same, no momentum", "80.58", "78.78", "73.46"),
    ("Flower, 1b4c061", "the same, no momentum", "82.49", "78.45", "75.67"),
    (XYF, f"{SMALL} 0.1", "45.7", "45.2", "46.8"),
    ("the same", f"{SMALL} 0.5", "50.4", "51.8", "51.4"),
    ("the same", f"{SMALL} 5", "54.0", "56.1", "54.5"),
    (FEDBR, "rotated CIFAR-10, 10 clients", "58.99", "", "57.37"),
    ("the thesis, one seed", "the same", "59.45", "", "57.16"),
)  # fmt: skip


def others() -> str:
    """The table of public attempts."""
    head = ["who, where", "setting", "FedAvg", "NaiveMix", "FedMix"]
    return markdown(head, [[who, setting, *_numbers(who, rest)] for who, setting, *rest in ROWS])


def _numbers(who: str, rest: list[str]) -> list[str]:
    if who == PAPER:
        return [f"{TABLES['main'].number(algorithm, rest[0])}" for algorithm in THREE]
    if who == OURS:
        *ours, logits = (_ours(algorithm, rest[0]) for algorithm in (*THREE, "fedmix-logits"))
        return [*ours[:2], f"{ours[2]}; logits {logits}"]
    return rest


def _ours(algorithm: str, data: str) -> str:
    found = row(data, algorithm)
    failed = all(run.failure for run in found.runs)
    return "does not train" if failed else found.cell(LAST_TEN).text()
