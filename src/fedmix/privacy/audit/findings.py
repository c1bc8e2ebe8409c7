"""Findings in plain words: what leaked, how certain that is, and which setting prevents it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedmix.privacy.accounting import upwards
from fedmix.privacy.audit.differencing import Differencing
from fedmix.privacy.audit.grid import Attacked, Grid
from fedmix.privacy.audit.rates import Rates, false_alarms_at_most, most_to_show

AT_CHANCE = 0.55  # an AUC whose upper limit is at most this counts as a guess
BY_LIMIT = f"an upper limit of AUC ≤ {AT_CHANCE}"
CERTAIN = 0.999  # an AUC above this counts as certainty
RECOGNISED = 20.0  # dB from which a recovered picture can be recognised


class Finding(NamedTuple):
    """Result of one attack: what leaked, how certain that is, and what prevents it."""

    title: str
    leaked: str
    sure: str
    stops: str


def findings(cells: Sequence[Attacked], grid: Grid) -> list[Finding]:
    """One finding for each attack."""
    return [
        _membership(cells, grid),
        _neighbours(cells, grid),
        _pictures(cells),
        _labels(cells),
        _owners(cells, grid),
        _changes(cells),
    ]


def named(cell: Attacked) -> str:
    """A setting in words."""
    return f"M = {cell.m}, {_noise(cell)}"


def _noise(cell: Attacked) -> str:
    noise = f"σ = {cell.how.noise:.3g}" if cell.how.noise else "no noise"
    return noise + (f" (ε = {upwards(cell.guarantee.epsilon)})" if cell.guarantee else "")


def _at_ends(cells: Sequence[Attacked], told: Callable[[Attacked], str]) -> str:
    """Describe the first and the last M with the least noise, one line each."""
    least = {cell.m: cell for cell in sorted(cells, key=lambda c: -c.how.noise)}
    ends = dict.fromkeys((cells[0].m, cells[-1].m))
    return "".join(f"\n• {named(least[m])}: {told(least[m])}" for m in ends)


def _stopped(cells: Sequence[Attacked], test: Callable[[Attacked], bool], what: str) -> str:
    """List the settings in which an attack got no further than `what`."""
    passed: dict[str, list[str]] = {}
    for cell in filter(test, cells):
        passed.setdefault(_noise(cell), []).append(str(cell.m))
    if not passed:
        return f"None of the settings tried left it at {what}."
    listed = "; ".join(f"M = {', '.join(sizes)} with {noise}" for noise, sizes in passed.items())
    return f"Left it at {what}, of the settings tried: {listed}."


def _guessed(*attackers: Rates) -> bool:
    return max(r.auc_high for r in attackers) <= AT_CHANCE


def _membership(cells: Sequence[Attacked], grid: Grid) -> Finding:
    def told(cell: Attacked) -> str:
        best = max((cell.server, cell.client), key=lambda r: r.auc)
        return (
            f"AUC {best.auc:.2f} ({best.auc_low:.2f} to {best.auc_high:.2f}), and {best.tpr:.0%} "
            f"({best.tpr_low:.0%} to {best.tpr_high:.0%}) of the samples found at one false alarm "
            "in a thousand"
        )

    first = cells[0].server
    few = (
        "one in a thousand of them was"
        if first.others >= 1000
        else "as there were fewer than 1,000, none of them was"
    )
    alarms = false_alarms_at_most(first.others, grid.confidence)
    return Finding(
        "Was this sample among those averaged?",
        "To an attacker who knows how such pictures are distributed, but not the other samples "
        f"(an AUC of 0.5 is a coin, 1 is certainty):{_at_ends(cells, told)}",
        f"{first.members} members and {first.others} others. In brackets are intervals so wide "
        "that all of this audit hold at once with 95 % confidence (those of AUCs by "
        f"approximation). To be found, a sample had to score higher than the others do: {few} "
        f"mistaken, which shows a rate of false alarms of at most {alarms:.1%}.",
        "A larger M and noise make it harder; noise with a bound on samples (--clip) bounds every "
        "such attack. "
        + _stopped(
            cells,
            lambda c: _guessed(c.server, c.client, c.together),
            f"{BY_LIMIT}, which more --seeds bring down",
        ),
    )


def _neighbours(cells: Sequence[Attacked], grid: Grid) -> Finding:
    proven = [cell for cell in cells if cell.guarantee]
    certain = [cell for cell in cells if cell.neighbours.rates.auc > CERTAIN]
    above = [cell for cell in proven if cell.neighbours.epsilon > cell.guarantee.epsilon]
    said = []
    if certain:
        said.append(
            f"Certain in {len(certain)} of {len(cells)} settings: averaging hides nothing from an "
            "attacker who knows the rest, and labels without noise tell classes apart."
        )
    if above:
        said.append(
            f"MORE THAN PROVEN at {'; '.join(map(named, above))}: the accounting or the release is "
            "wrong."
        )
    elif proven:
        near = max(proven, key=lambda c: c.neighbours.epsilon / c.guarantee.epsilon)
        said.append(
            f"Never above a proven ε; nearest to it at {named(near)}, where ε ≥ "
            f"{near.neighbours.epsilon:.2f} was shown."
        )
    else:
        said.append("No setting tried has a proven ε.")
    most = most_to_show(grid.trials // 2, grid.delta, grid.confidence)
    return Finding(
        "Which of two samples was it, to an attacker who knows all the others?",
        " ".join(said),
        f"{grid.trials:,} releases of each of the two at each setting. The ε shown are lower "
        f"bounds, with δ = {grid.delta:g}, that hold for all {len(cells)} settings at once with 95 "
        f"% confidence; so many trials can show {most:.1f} at most.",
        "Noise on inputs and labels with a bound on both (--sigma or --epsilon, with --clip). "
        + _stopped(cells, lambda c: _guessed(c.neighbours.rates), BY_LIMIT),
    )


def _pictures(cells: Sequence[Attacked]) -> Finding:
    def told(cell: Attacked) -> str:
        r = cell.reconstruction
        nearer = (
            f"a blind guess is {round(r.blind.psnr - r.unseen.psnr, 1) + 0:+.1f} dB nearer "
            "than the class's mean"
        )
        return f"{r.identified:.0%} of the samples named (by chance {r.chance:.0%}), and {nearer}"

    return Finding(
        "Which pictures are in a mean?",
        "To an attacker with a list of suspects, who must name those in the mean (without noise, "
        "and with fewer suspects than a picture has pixels, a mean decides on all of them, "
        f"however large M is):{_at_ends(cells, told)}",
        f"{cells[0].reconstruction.attempts} means at each setting, up to 300 false suspects "
        "beside the true ones.",
        "Noise; a larger M only against an attacker without a list. "
        + _stopped(
            cells,
            lambda c: c.reconstruction.identified <= c.reconstruction.chance + 0.05,
            "chance, by 5 points",
        ),
    )


def _labels(cells: Sequence[Attacked]) -> Finding:
    read = [cell for cell in cells if cell.labels.known > CERTAIN]
    if read:
        inferred = np.mean([cell.labels.inferred for cell in read])
        leaked = (
            f"All counts, in {len(read)} of {len(cells)} settings: wherever labels carry no noise. "
            "An attacker who does not know M finds it and the counts from the label mean alone "
            f"in {inferred:.0%} of the means."
        )
    else:
        leaked = (
            f"Nowhere all; at most {max(cell.labels.known for cell in cells):.0%} of the "
            "means were read rightly."
        )
    return Finding(
        "How many samples of each class are in a mean?",
        leaked,
        f"This is arithmetic: M times a label mean is whole numbers. {cells[0].labels.means:.0f} "
        "means, or all there are.",
        "Noise on labels, which comes with a bound (--clip); never M alone. "
        + _stopped(cells, lambda c: c.labels.known <= 0.05, "5 % of the means"),
    )


def _owners(cells: Sequence[Attacked], grid: Grid) -> Finding:
    def told(cell: Attacked) -> str:
        a, b = cell.linking, cell.linking_together
        return (
            f"{a.labels:.0%} by label shares, {a.samples:.0%} with five known samples as well "
            f"(chance {a.chance:.0%}), and of entries averaged by {grid.average}, {b.labels:.0%} "
            f"and {b.samples:.0%} (chance {b.chance:.0%})"
        )

    return Finding(
        "Whose mean is it?",
        "The server knows, since uploads have senders. A client links entries of the shuffled "
        f"pool:{_at_ends(cells, told)}",
        f"{cells[0].linking.entries:.0f} entries, or all there are, at each setting and seed.",
        "Clients that are alike; averaging by the server helps, and so does noise on labels. "
        + _stopped(
            cells,
            lambda c: max(c.linking.labels, c.linking.samples) <= 2 * c.linking.chance,
            "twice the chance or less",
        ),
    )


def _changes(cells: Sequence[Attacked]) -> Finding:
    def told(cell: Attacked) -> str:
        now, mixed, waiting, both = cell.differencing
        return (
            f"the server recovers it with {now.server:.0f} dB; a client with {now.client:.0f} dB, "
            f"with {mixed.client:.0f} dB if the server averages, {waiting.client:.0f} dB if "
            f"clients wait for each other, {both.client:.0f} dB if both (without seeing "
            f"anything: {both.unseen:.0f} dB)"
        )

    def gain(of: Differencing) -> float:
        return max(of.server, of.client) - of.unseen

    both = [cell.differencing[-1] for cell in cells]
    safe = sum(d.client < RECOGNISED for d in both)
    return Finding(
        "What changed between two refreshes?",
        "One sample of a client is replaced, and the difference of the sums shows "
        f"it:{_at_ends(cells, told)}",
        f"Medians over {both[0].victims} victims. Waiting for {both[0].changed} clients to change "
        f"and averaging by {both[0].average} together kept a client below {RECOGNISED:.0f} dB in "
        f"{safe} of {len(cells)} settings.",
        "Against clients, waiting and averaging together; against the server neither, only noise "
        "on every release. "
        + _stopped(
            cells, lambda c: max(map(gain, c.differencing)) <= 1, "what was known before, by 1 dB"
        ),
    )
