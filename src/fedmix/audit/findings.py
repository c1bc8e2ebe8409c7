"""What the figures mean, in plain words: what leaked, how sure that is, and what setting stopped it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedmix.audit.differencing import Differencing
from fedmix.audit.grid import Cell, Grid
from fedmix.audit.rates import Rates

AT_CHANCE = 0.55  # an AUC up to that is taken for a guess
RECOGNISED = 20.0  # dB, from which a recovered picture shows what it is


class Finding(NamedTuple):
    """One attack's outcome."""

    title: str
    leaked: str
    sure: str
    stops: str


@dataclass(frozen=True)
class _Cells:
    """The cells, with ways to speak of them."""

    cells: Sequence[Cell]

    def ends(self) -> list[Cell]:
        """The smallest and the largest M with the least noise."""
        first = min(self.cells, key=lambda c: c.how.noise)
        alike = [c for c in self.cells if c.how.noise == first.how.noise]
        return alike if len(alike) < 2 else [alike[0], alike[-1]]

    def stopped(self, test: Callable[[Cell], bool], what: str) -> str:
        """The settings in which the attack got no further than the test allows."""
        passed = [f"{named(c)}" for c in self.cells if test(c)]
        if not passed:
            return f"None of the settings tried left it at {what}."
        return f"Left it at {what}, of what was tried: {'; '.join(passed)}."


def named(cell: Cell) -> str:
    """A cell in words."""
    noise = f"σ = {cell.how.noise:.3g}" if cell.how.noise else "no noise"
    return f"M = {cell.m}, {noise}" + (f" (ε = {cell.guarantee.epsilon:.3g})" if cell.guarantee else "")


def findings(cells: Sequence[Cell], grid: Grid) -> list[Finding]:
    """One finding for each attack."""
    all_cells = _Cells(cells)
    return [
        attack(all_cells, grid)
        for attack in (_membership, _neighbours, _pictures, _labels, _owners, _changes)
    ]  # fmt: skip


def _membership(all_cells: _Cells, grid: Grid) -> Finding:
    def told(cell: Cell) -> str:
        best = max((cell.server, cell.client), key=lambda r: r.auc)
        return f"{named(cell)}: AUC {best.auc:.2f}, {best.tpr:.0%} of the samples found at one false alarm in a thousand"

    [first, *_] = all_cells.cells
    few = "" if first.server.others >= 1000 else " With fewer than 1,000 others, no false alarm was allowed at all."
    widest = max(c.server.auc_high - c.server.auc_low for c in all_cells.cells) / 2
    return Finding(
        "Was this sample among those averaged?",
        "An attacker who knows how such pictures are distributed, but not the other samples: "
        f"{'; '.join(map(told, all_cells.ends()))}. An AUC of 0.5 is a coin, 1 is certainty.",
        f"{first.server.members} members and {first.server.others} others, over all seeds; the 95 % interval of an AUC is at most "
        f"± {widest:.3f}.{few}",
        all_cells.stopped(lambda c: max(r.auc for r in (c.server, c.client, c.together)) <= AT_CHANCE, f"AUC ≤ {AT_CHANCE}"),
    )


def _neighbours(all_cells: _Cells, grid: Grid) -> Finding:
    proven = [c for c in all_cells.cells if c.guarantee]
    certain = [c for c in all_cells.cells if c.neighbours.rates.auc > 0.999]
    worst = max(all_cells.cells, key=lambda c: c.neighbours.epsilon)
    if proven:
        tight = max(proven, key=lambda c: c.neighbours.epsilon / c.guarantee.epsilon)
        beside = (
            f" Where ε is proven, the attack never came above it; nearest at {named(tight)}, where it shows ε ≥ "
            f"{tight.neighbours.epsilon:.2f}."
        )
        if any(c.neighbours.epsilon > c.guarantee.epsilon for c in proven):
            beside = " AN ATTACK CAME ABOVE A PROVEN ε: either the accounting or the release is wrong."
    else:
        beside = " No setting tried has a proven ε: that needs noise and a bound (--clip)."
    return Finding(
        "Which of two samples was it, to who knows all the others?",
        (
            f"Certain in {len(certain)} of {len(all_cells.cells)} settings: averaging alone hides nothing from who knows the rest, and "
            "labels without noise tell two classes apart. " if certain else ""
        )
        + f"The most that was shown is ε ≥ {worst.neighbours.epsilon:.2f} ({named(worst)})." + beside,
        f"{grid.trials:,} releases of each of the two; ε is a lower bound at 95 % confidence with δ = {grid.delta:g}. So many trials "
        f"cannot show more than about {np.log(grid.trials / 2 / 3.7):.1f}.",
        "Noise on inputs and labels, with a bound on both (--clip): the proven ε then holds against everybody."
        if not proven
        else all_cells.stopped(lambda c: c.neighbours.rates.auc <= AT_CHANCE, f"AUC ≤ {AT_CHANCE}"),
    )  # fmt: skip


def _pictures(all_cells: _Cells, grid: Grid) -> Finding:
    def told(cell: Cell) -> str:
        r = cell.reconstruction
        return (
            f"{named(cell)}: {r.identified:.0%} of the samples named (by chance {r.chance:.0%}); "
            f"a blind guess is {r.blind.psnr - r.unseen.psnr:+.1f} dB nearer than the class's mean"
        )

    return Finding(
        "Which pictures are in a mean?",
        f"An attacker with a list of suspects, of whom it must name those in the mean: {'; '.join(map(told, all_cells.ends()))}. "
        "Where there are fewer suspects than pixels and no noise, the mean decides on all of them, however large M is.",
        f"{all_cells.cells[0].reconstruction.attempts} means at each setting, up to 300 false suspects beside the true ones.",
        all_cells.stopped(lambda c: c.reconstruction.identified <= c.reconstruction.chance + 0.05, "chance, by 5 points"),
    )


def _labels(all_cells: _Cells, grid: Grid) -> Finding:
    read = [c for c in all_cells.cells if c.labels.known > 0.99]
    guessed = np.mean([c.labels.inferred for c in read]) if read else 0.0
    return Finding(
        "How many samples of each class are in a mean?",
        f"Known exactly in {len(read)} of {len(all_cells.cells)} settings, whenever labels carry no noise and M is known; where M is "
        f"not, it follows from the label mean itself in {guessed:.0%} of the means." if read else "Not known exactly anywhere.",
        "This is arithmetic: M times a label mean is a vector of whole numbers.",
        all_cells.stopped(lambda c: c.labels.known <= 0.05, "5 % of the means read rightly"),
    )  # fmt: skip


def _owners(all_cells: _Cells, grid: Grid) -> Finding:
    def told(cell: Cell) -> str:
        a, b = cell.linking, cell.linking_together
        return (
            f"{named(cell)}: {a.labels:.0%} by label shares, {a.samples:.0%} with five known samples (chance {a.chance:.0%}); "
            f"averaged by {grid.average}, {b.labels:.0%} and {b.samples:.0%} (chance {b.chance:.0%})"
        )

    return Finding(
        "Whose mean is it?",
        f"The server knows, since uploads have senders. A client, from the shuffled pool: {'; '.join(map(told, all_cells.ends()))}.",
        f"{all_cells.cells[0].linking.entries:.0f} entries or all there are, at each setting and seed.",
        all_cells.stopped(lambda c: max(c.linking.labels, c.linking.samples) <= 2 * c.linking.chance, "twice the chance or less"),
    )


def _changes(all_cells: _Cells, grid: Grid) -> Finding:
    def seen(cell: Cell, average: bool, wait: bool) -> Differencing:
        return next(d for d in cell.differencing if (d.average > 1) == average and (d.wait > 0) == wait)

    def told(cell: Cell) -> str:
        a, b, c = seen(cell, False, False), seen(cell, False, True), seen(cell, True, True)
        return (
            f"{named(cell)}: the server recovers it with {a.server:.0f} dB, a client with {a.client:.0f} dB, with {b.client:.0f} dB if "
            f"clients wait for each other, and with {c.client:.0f} dB if the server averages besides (unseen: {c.unseen:.0f} dB)"
        )

    def worst(cell: Cell) -> float:
        return max(max(d.server, d.client) - d.unseen for d in cell.differencing)

    waiting = [seen(c, True, True) for c in all_cells.cells]
    helped = sum(d.client < RECOGNISED for d in waiting)
    return Finding(
        "What changed between two refreshes?",
        f"One sample of a client is replaced, and the difference of the sums shows it: {'; '.join(map(told, all_cells.ends()))}.",
        f"{all_cells.cells[0].differencing[0].victims} victims at each setting, medians. Waiting for {waiting[0].changed} clients "
        f"together with averaging kept a client below {RECOGNISED:.0f} dB in {helped} of {len(waiting)} settings; "
        "it does nothing against the server.",
        all_cells.stopped(lambda c: worst(c) <= 1, "what was known before, by 1 dB"),
    )


def rates_text(rates: Rates) -> str:
    """AUC with the share found."""
    return f"{rates.auc:.3f} ({rates.tpr:.1%})"
