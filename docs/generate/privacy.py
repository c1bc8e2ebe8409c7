"""The tables and charts of docs/privacy.md, which benchmarks/privacy.py makes, and ε of a noise."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import privacy

from docs.generate.tables import markdown
from fedmix import Exchange
from fedmix.privacy import calibrated, guarantee

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results"
FILES = {
    "digits": FOLDER / "2026-11-15-privacy" / "digits.json",
    "cifar10": FOLDER / "2026-11-15-privacy" / "cifar10.json",
    "whole": FOLDER / "2026-11-19-privacy" / "whole.json",
}
DIGITS = 70  # samples of a client, about


def _said(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILES[name].read_text())
    return found


def _grid(name: str) -> str:
    return privacy.table(_said(name))


def _whole() -> str:
    return privacy.whole_table(_said("whole")["records"])


def _draw(name: str, path: Path) -> None:
    privacy.draw(_said(name), path)


def _epsilons() -> str:
    """ε of the paper's noises, and the noise for some ε, by M_k."""
    lines = []
    for m in privacy.GROUPS:
        group = DIGITS if m == "all" else m
        how = Exchange(m=m, clip=privacy.TASKS["digits"].clip)
        noised = (Exchange(m=m, clip=how.clip, noise=noise) for noise in privacy.SIGMAS)
        promised = [guarantee(each, group, nonnegative=True).epsilon for each in noised]
        noises = [
            calibrated(how, epsilon, group, nonnegative=True).noise
            for epsilon in reversed(privacy.EPSILONS)
        ]
        title = f"all ({DIGITS})" if m == "all" else f"{m}"
        lines.append([title, *(f"{number:.3g}" for number in (*promised, *noises))])
    sigmas = [f"σ = {noise}" for noise in privacy.SIGMAS]
    epsilons = [f"σ for ε = {epsilon:g}" for epsilon in reversed(privacy.EPSILONS)]
    return markdown(["M_k", *sigmas, *epsilons], lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "digits": partial(_grid, "digits"),
    "cifar10": partial(_grid, "cifar10"),
    "whole": _whole,
    "epsilons": _epsilons,
}
PICTURES: Mapping[str, Callable[[Path], None]] = {
    "privacy.svg": partial(_draw, "digits"),
    "privacy-cifar10.svg": partial(_draw, "cifar10"),
}
