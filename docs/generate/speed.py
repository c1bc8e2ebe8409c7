"""The tables and charts of docs/speed.md, from what was measured in benchmarks/results."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import presets

from docs.generate.runs import UNTOLD
from docs.generate.tables import BF16, changed, markdown, row
from fedmix.bench import scale
from fedmix.bench.plot import draw_growth, draw_speedups
from fedmix.bench.results import read_steps, table
from fedmix.bench.scale import Growth

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
DIGITS = "2026-11-19-cpu/steps-digits.json"
DEFAULT = "2026-11-19-cpu/steps-lenet.json"
STEPS = "2026-11-15-cpu/steps-quiet.json"
SCALE = "2026-11-15-cpu/scale.json"
PEERS = "2026-11-19-cpu/peers-lenet.json"
PEERS_VGG = "2026-11-19-cpu/peers-vgg.json"
PEERS_LSTM = "2026-11-19-cpu/peers-lstm.json"
TUNED = "2026-11-16-cpu/peers.json"
H200 = ("2026-11-16-h200/steps-vgg.json", "2026-11-16-h200/steps-lenet.json")
H200_PEERS = "2026-11-16-h200/peers.json"
# How a program is called, and the package that has its version.
NAMES = {
    "fedmix": ("**fedmix**, as `fedmix run`", ""),
    "fedmix-script": ("**fedmix**, in Python", ""),
    "fedjax": ("FedJAX", "fedjax"),
    "plain": ("plain PyTorch", "torch"),
    "pfl": ("pfl", "pfl"),
    "fluke": ("fluke", "fluke-fl"),
    "blazefl": ("BlazeFL", "blazefl"),
    "flower": ("Flower", "flwr"),
}


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def _when(of: Mapping[str, Any]) -> str:
    return f"{of['commit'][:7]}, {of['started'][:10]}"


def _folded(lines: list[list[str]]) -> str:
    """Return a fold-out that says how each was made."""
    table = markdown(["", "by", "on", "at"], lines)
    summary = "<summary>Commands, commits and machines</summary>"
    return f'<details markdown="1">\n{summary}\n\n{table}\n\n</details>'


def _made(*names: str) -> str:
    lines = []
    for name in names:
        of = _read(name)
        machine = of["machine"]
        where = machine.get("gpu") or f"{machine['cores']} cores of {machine['cpu']}"
        lines.append([f"`benchmarks/results/{name}`", f"`{of['command']}`", where, _when(of)])
    return _folded(lines)


def _steps(*names: str) -> str:
    records = [record for name in names for record in read_steps(FOLDER / name)]
    return f"{table(records).markdown()}\n\n{_made(*names)}"


def _grown() -> list[Growth]:
    return [Growth(**record) for record in _read(SCALE)["records"]]


def _scale() -> str:
    points = scale.table(_grown()).markdown()
    head = '<details markdown="1">\n<summary>Seconds and memory of each point</summary>'
    return f"{head}\n\n{points}\n\n</details>\n\n{_made(SCALE)}"


def _whole() -> str:
    names = (PEERS, PEERS_VGG, PEERS_LSTM, TUNED, DIGITS)
    return f"{presets.table(*(FOLDER / name for name in names))}\n\n{_made(*names)}"


def _runs() -> str:
    """Seconds of whole runs on a GPU, by their own clocks, with nothing compiled before."""
    published = {
        "CIFAR-10, 500 rounds, FedMix": changed("cifar10", "", "fedmix", {"objective.third": 0.1}),
        "the same in bf16": changed("cifar10", "", "fedmix", BF16, {"seeds": (0,)}),
        "Shakespeare, 50 rounds, FedMix, logits": row("shakespeare", "fedmix-logits"),
    }
    lines, made = [], []
    for title, one in published.items():
        for run in one.runs:
            of = run.environment
            lines.append([title, f"{run.packed.content['summary']['seconds']:.0f} s"])
            command = UNTOLD.sub("", of["command"])
            made.append([title, f"`{command}`", of["device"], _when(of)])
    return f"{markdown(['', 'takes'], lines)}\n\n{_folded(made)}"


def _peers(file: str) -> str:
    """Every program as it is by default, the fastest first."""
    lines = []
    for r in sorted(_read(file)["records"], key=lambda r: float(r["ms_per_step"])):
        name, package = NAMES[r["variant"]]
        version = r["versions"].get(package, "").partition("+")[0]
        start = f"{r['startup_s'] + r['warmup_s']:.0f} s"
        ms = [f"{r[of]:.3g}" for of in ("ms_per_step", "low", "high")]
        spread = f"{ms[1]}–{ms[2]}"
        lines.append([f"{name} {version}".strip(), ms[0], spread, f"{r['speedup']:.2f}", start])
    head = ["", "ms", "range", "times plain", "start and first rounds"]
    return f"{markdown(head, lines)}\n\n{_made(file)}"


def _tuned() -> str:
    """How many times faster than the plain loop, with each program's best settings."""
    files = {"two CPU cores": TUNED, "an NVIDIA H200": H200_PEERS}
    lines = []
    for machine, name in files.items():
        by: dict[tuple[str, str], list[str]] = {}
        for r in sorted(_read(name)["records"], key=lambda r: -float(r["speedup"])):
            if r["variant"] != "plain":
                program = NAMES[r["variant"]][0].replace("*", "").partition(",")[0]
                said = by.setdefault((r["workload"], r["algorithm"]), [])
                said.append(f"{program} {r['speedup']:.3g}")
        lines += [[machine, *work, ", ".join(said)] for work, said in sorted(by.items())]
    head = ["machine", "model", "algorithm", "times plain"]
    return f"{markdown(head, lines)}\n\n{_made(*files.values())}"


def _drawn_steps(names: Sequence[str], caption: str, path: Path) -> None:
    draw_speedups([record for name in names for record in read_steps(FOLDER / name)], path, caption)


def _drawn_growth(path: Path) -> None:
    draw_growth(_grown(), path)


PARTS: Mapping[str, Callable[[], str]] = {
    "default": partial(_steps, DEFAULT),
    "steps": partial(_steps, STEPS),
    "h200": partial(_steps, *H200),
    "runs": _runs,
    "scale": _scale,
    "whole": _whole,
    "peers": partial(_peers, PEERS),
    "peers-vgg": partial(_peers, PEERS_VGG),
    "peers-lstm": partial(_peers, PEERS_LSTM),
    "tuned": _tuned,
}
PICTURES: Mapping[str, Callable[[Path], None]] = {
    "speed.svg": partial(_drawn_steps, [DEFAULT], "two CPU cores, without flags"),
    "scale.svg": _drawn_growth,
    "peers.svg": partial(
        _drawn_steps, [PEERS, PEERS_VGG], "each program as it is by default, without settings"
    ),
}  # fmt: skip
