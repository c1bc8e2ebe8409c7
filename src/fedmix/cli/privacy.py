"""What `fedmix privacy` does: ε of noise, noise for ε, and what the means then look like."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.data import FederatedData
from fedmix.data.transforms import Images
from fedmix.exchange import Exchange, Guarantee, MeanExchange, calibrated, guarantee, sensitivity
from fedmix.experiment.spec import Experiment
from fedmix.experiment.sweep import only_experiment
from fedmix.privacy.accounting import Level, Neighbours, nonnegative, upwards
from fedmix.report.files import write_figure
from fedmix.runs.progress import console, tell_written

SHOWN = 6  # pictures in a row
SHADES = " ░▒▓█"
LINES = 10  # of a picture on a terminal, at most
GAP = 3  # between two of them
KINDS: tuple[tuple[str, Neighbours, Level], ...] = (
    ("one sample replaced", "replace", "sample"),
    ("one sample added or removed", "add-remove", "sample"),
    ("one client replaced", "replace", "client"),
)


def exchange(what: str, given: dict[str, Any]) -> Exchange:
    """What the options say, over what an experiment file says."""
    asked = _experiment(what)
    written = asked.build_exchange() if what.endswith(".toml") else None
    if getattr(asked.objective, "layer", 0):
        raise BadInput(
            f"{what} exchanges means of hidden states, for which nothing is guaranteed "
            "(docs/privacy.md)"
        )
    if written and written.source != "pool":
        raise BadInput(
            f"{what} has exchange.source={written.source!r}, which sends no means; there is "
            "nothing to protect"
        )
    return replace(written or Exchange(), **given)


def privacy(
    what: str,
    how: Exchange,
    *,
    epsilon: float | None,
    delta: float,
    releases: int,
    samples: int | None,
    root: Path | None,
    png: Path | None,
    as_json: bool,
) -> None:
    """Print the guarantees of an exchange, with the least noise for `epsilon` if one is given.

    Groups are those of the preset's clients, or of a client with `samples` samples of any sign.
    """
    if samples is not None and samples < 1:
        raise BadInput(f"--n {samples}: a client has at least 1 sample")
    if samples is not None and png:
        raise BadInput(
            "--png shows means of a preset's data, and --n is for other data; give one of them"
        )
    data = None if samples is not None else _experiment(what).build_data(root)
    sizes = np.array([samples]) if data is None else data.clients.sizes
    how.check(sizes)
    group, signless = how.smallest_group(sizes), data is not None and nonnegative(data)
    if epsilon is not None:
        how = calibrated(how, epsilon, group, delta, releases=releases, nonnegative=signless)
    moved = [
        sensitivity(bound, group, nonnegative=signless)
        for bound in (how.clip, how.label_clip)
        if bound
    ]
    found = {
        name: guarantee(
            how,
            group,
            delta,
            releases=releases,
            neighbours=neighbours,
            level=level,
            nonnegative=signless,
        )
        for name, neighbours, level in KINDS
    }
    if as_json:
        print(json.dumps(_values(how, group, delta, releases, moved, found), indent=1))
    else:
        _tell(how, group, delta, releases, moved, found, epsilon is not None)
        if data is not None and epsilon is not None:
            _show(data, how)
    if png and data is not None:
        _draw(data, how, png)
        tell_written(png)


def _experiment(what: str) -> Experiment:
    return only_experiment(what, None, None, None, [])


def _values(
    how: Exchange,
    group: int,
    delta: float,
    releases: int,
    moved: Sequence[float],
    found: dict[str, Guarantee],
) -> dict[str, Any]:
    noise, label_noise = how.noises
    epsilons = {name: g.epsilon if g else None for name, g in found.items()}
    reasons = {name: g.reason for name, g in found.items() if not g}
    settings = {
        "m": how.m,
        "clip": how.clip,
        "label_clip": how.label_clip,
        "noise": noise,
        "label_noise": label_noise,
    }
    about = {"smallest_mean": group, "sensitivity": moved, "delta": delta, "releases": releases}
    return settings | about | {"epsilon": epsilons, "none": reasons}


def _tell(
    how: Exchange,
    group: int,
    delta: float,
    releases: int,
    moved: Sequence[float],
    found: dict[str, Guarantee],
    asked: bool,
) -> None:
    noise, label_noise = how.noises
    bounds = f"clip {how.clip:g}" if how.clip else "no clip"
    if how.label_clip:
        bounds += f" (labels {how.label_clip:g})"
    times = "one release" if releases == 1 else f"{releases} releases"
    out = console(sys.stdout)
    sigma, label_sigma = (upwards(s, 4) if asked else f"{s:.4g}" for s in (noise, label_noise))
    if asked:
        out.print(
            f"needed: exchange.noise={sigma}"
            + (f", exchange.label_noise={label_sigma}" if how.label_clip else "")
        )
    out.print(
        f"means of at least {group} sample{'s' if group > 1 else ''}, {bounds}, σ = {sigma} on "
        f"inputs and {label_sigma} "
        f"on labels, δ = {delta:g}, {times}:"
    )
    if moved:
        far = " and its labels by ".join(upwards(by, 4) for by in moved)
        out.print(f"  one sample moves a mean by at most Δ = {far}")
    for name, g in found.items():
        out.print(f"  {name:28} {f'ε = {upwards(g.epsilon, 4)}' if g else g}")
    out.print("Weights, sizes and who takes part are not covered.")


def _released(data: FederatedData, how: Exchange) -> Tensor:
    """The first mean of each of a few clients."""
    exchange = MeanExchange(replace(how, average=1), 0, len(data.clients))
    exchange.refresh(data, data.units)
    assert exchange.releases is not None
    return exchange.releases.x[np.unique(exchange.releases.owner, return_index=True)[1][:SHOWN]]


def _both(data: FederatedData, how: Exchange) -> list[tuple[str, Any]]:
    clean = replace(how, noise=0.0, label_noise=None if how.label_noise is None else 0.0)
    return [
        ("means", _released(data, clean).numpy()),
        (f"with σ = {how.noise:.3g}", _released(data, how).numpy()),
    ]


def _show(data: FederatedData, how: Exchange) -> None:
    """Pictures in characters, the means above what is sent of them."""
    if not isinstance(data.transform, Images):
        return
    out = console(sys.stdout)
    for title, pictures in _both(data, how):
        out.print(f"{title}:")
        grey = pictures.mean(1)
        step = max(1, math.ceil(grey.shape[-2] / LINES))
        fit = (out.width - 2 + GAP) // (2 * math.ceil(grey.shape[-1] / step) + GAP)
        grey = grey[: max(1, fit)]
        level = (np.clip(grey[:, ::step, ::step], 0, 1) * (len(SHADES) - 1)).round().astype(int)
        for row in range(level.shape[1]):
            line = (" " * GAP).join("".join(2 * SHADES[v] for v in one[row]) for one in level)
            out.print(f"  {line}", soft_wrap=True)


def _draw(data: FederatedData, how: Exchange, path: Path) -> None:
    """The same as a file."""
    if not isinstance(data.transform, Images):
        raise BadInput(f"--png: {data.name} has no pictures; leave it out")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SHOWN, 2.6), layout="constrained")
    parts: Any = figure.subfigures(2, 1)
    for part, (title, pictures) in zip(parts, _both(data, how), strict=True):
        part.suptitle(title, fontsize=9)
        for axes, picture in zip(part.subplots(1, SHOWN, squeeze=False)[0], pictures, strict=False):
            axes.imshow(
                np.clip(np.moveaxis(picture, 0, -1), 0, 1).squeeze(), cmap="gray", vmin=0, vmax=1
            )
        for axes in part.axes:
            axes.set_axis_off()
    write_figure(path, figure)
