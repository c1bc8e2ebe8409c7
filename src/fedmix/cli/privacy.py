"""`fedmix privacy`: the ε of a noise, the noise for an ε, and what the noised means look like.

With noise on updates, it is one ε for all that leaves clients (`privacy_whole.py`).
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmix.cli import options
from fedmix.core.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from fedmix.data import FederatedData
    from fedmix.exchange import Exchange
    from fedmix.privacy.accounting import Guarantee, Level, Neighbours

SHOWN = 6  # pictures in a row
SHADES = " ░▒▓█"
LINES = 10  # of a picture on a terminal, at most
GAP = 3  # columns between two of them
KINDS: tuple[tuple[str, "Neighbours", "Level"], ...] = (
    ("one sample replaced", "replace", "sample"),
    ("one sample added or removed", "add-remove", "sample"),
    ("one client replaced", "replace", "client"),
)

app = typer.Typer()


@app.command(
    cls=options.Command,
    epilog="Example:  fedmix privacy --m all --clip 4 --epsilon 1 --png means.png",
)
def privacy(
    what: options.What = "digits",
    m: Annotated[
        str | None,
        typer.Option(
            "--m",
            help="M_k: samples in a mean, a fraction of a client's, or all; all, or the file's.",
        ),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(help="The bound on the L2 norm of a sample, input and label together."),
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="The noise's deviation; 0, or the file's.")
    ] = None,
    label_clip: Annotated[
        float | None,
        typer.Option(help="A bound for labels alone; --clip is then for inputs alone."),
    ] = None,
    label_sigma: Annotated[
        float | None, typer.Option(help="The deviation of the labels' own noise.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Print the least noise for this ε, instead of the ε of a noise."),
    ] = None,
    delta: options.Delta = 1e-5,
    releases: Annotated[int, typer.Option(help="How often a client's means are sent.")] = 1,
    n: Annotated[
        int | None,
        typer.Option(
            "--n", help="Samples of the smallest client, of any sign, instead of a preset's data."
        ),
    ] = None,
    data: options.Data = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="DP-FedAvg's noise on updates: one ε for all that leaves clients; or the file's."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of DP-FedAvg; the preset's or the file's.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="N, all clients; the preset's or the file's.")
    ] = None,
    per_round: Annotated[
        int | None, typer.Option(help="K, clients in a round; the preset's or the file's.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Write there what the noised means look like (.png or .svg)."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """How much privacy noise gives, as (ε, δ), on means or on all that leaves; or what ε needs."""
    import numpy as np

    from fedmix.cli.output import check_outputs
    from fedmix.cli.privacy_whole import tell
    from fedmix.experiment.sweep import only_experiment
    from fedmix.privacy.accounting import calibrated, guarantee, nonnegative, sensitivity
    from fedmix.runs.progress import tell_written

    check_outputs(pictures=(png,))
    given = {"m": m and options.group_size(m), "clip": clip, "noise": sigma}
    given |= {"label_clip": label_clip, "label_noise": label_sigma}
    given = {name: value for name, value in given.items() if value is not None}
    asked = only_experiment(what, None, None, None, [])
    if asked.updates or any(v is not None for v in (noise_multiplier, rounds, clients, per_round)):
        if png or n is not None:
            raise BadInput("--png and --n are about means alone; leave them out with DP-FedAvg")
        if not what.endswith(".toml") and not given:  # a preset's means are a default, not a wish
            asked = only_experiment(what, "fedavg", None, None, [])
        tell(
            asked, given, noise_multiplier=noise_multiplier, rounds=rounds, per_round=per_round,
            clients=clients, epsilon=epsilon, delta=delta, releases=releases, root=data,
            as_json=as_json,
        )  # fmt: skip
        return
    if epsilon is not None and (sigma or label_sigma):
        raise BadInput("--epsilon asks for the noise; leave --sigma and --label-sigma out")
    if label_clip is not None and epsilon is not None:
        given["label_noise"] = 1.0  # `calibrated` replaces it
    how = _exchange(what, given)
    if n is not None and n < 1:
        raise BadInput(f"--n {n}: a client has at least 1 sample")
    if n is not None and png:
        raise BadInput(
            "--png shows means of a preset's data, and --n is for other data; give one of them"
        )
    federated = asked.build_data(data) if n is None else None
    sizes = np.array([n]) if federated is None else federated.clients.sizes
    how.check(sizes)
    group = how.smallest_group(sizes)
    signless = federated is not None and nonnegative(federated)
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
        if federated is not None and epsilon is not None:
            _show(federated, how)
    if png and federated is not None:
        _draw(federated, how, png)
        tell_written(png)


def _exchange(what: str, given: dict[str, Any]) -> "Exchange":
    """Return the exchange of an experiment file, or the default, with the given settings changed.

    Raises BadInput where the file exchanges no means of samples.
    """
    from fedmix.exchange import Exchange
    from fedmix.experiment.sweep import only_experiment

    asked = only_experiment(what, None, None, None, [])
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


def _values(
    how: "Exchange",
    group: int,
    delta: float,
    releases: int,
    moved: Sequence[float],
    found: dict[str, "Guarantee"],
) -> dict[str, Any]:
    """Return settings and guarantees for --json."""
    noise, label_noise = how.noises
    return {
        "m": how.m,
        "clip": how.clip,
        "label_clip": how.label_clip,
        "noise": noise,
        "label_noise": label_noise,
        "smallest_mean": group,
        "sensitivity": moved,
        "delta": delta,
        "releases": releases,
        "epsilon": {name: g.epsilon if g else None for name, g in found.items()},
        "none": {name: g.reason for name, g in found.items() if not g},
    }


def _tell(
    how: "Exchange",
    group: int,
    delta: float,
    releases: int,
    moved: Sequence[float],
    found: dict[str, "Guarantee"],
    asked: bool,
) -> None:
    """Print the guarantees; `asked` says that an ε was asked for, and the noise is the answer."""
    from fedmix.privacy.accounting import upwards
    from fedmix.runs.progress import console

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


def _released(data: "FederatedData", how: "Exchange") -> "Tensor":
    """Return the first mean of each of the first clients."""
    import numpy as np

    from fedmix.exchange import MeanExchange

    exchange = MeanExchange(replace(how, average=1), 0, len(data.clients))
    exchange.refresh(data, data.units)
    assert exchange.releases is not None
    return exchange.releases.x[np.unique(exchange.releases.owner, return_index=True)[1][:SHOWN]]


def _pictures(data: "FederatedData", how: "Exchange") -> list[tuple[str, Any]]:
    """Return a few means without noise and with it, each row with its title."""
    clean = replace(how, noise=0.0, label_noise=None if how.label_noise is None else 0.0)
    return [
        ("means", _released(data, clean).numpy()),
        (f"with σ = {how.noise:.3g}", _released(data, how).numpy()),
    ]


def _show(data: "FederatedData", how: "Exchange") -> None:
    """Print the pictures as characters, the means above the noised ones."""
    import numpy as np

    from fedmix.data.transforms import Images
    from fedmix.runs.progress import console

    if not isinstance(data.transform, Images):
        return
    out = console(sys.stdout)
    for title, pictures in _pictures(data, how):
        out.print(f"{title}:")
        grey = pictures.mean(1)
        step = max(1, math.ceil(grey.shape[-2] / LINES))
        fit = (out.width - 2 + GAP) // (2 * math.ceil(grey.shape[-1] / step) + GAP)
        grey = grey[: max(1, fit)]
        level = (np.clip(grey[:, ::step, ::step], 0, 1) * (len(SHADES) - 1)).round().astype(int)
        for row in range(level.shape[1]):
            line = (" " * GAP).join("".join(2 * SHADES[v] for v in one[row]) for one in level)
            out.print(f"  {line}", soft_wrap=True)


def _draw(data: "FederatedData", how: "Exchange", path: Path) -> None:
    """Write the pictures to a file."""
    import numpy as np

    from fedmix.data.transforms import Images

    if not isinstance(data.transform, Images):
        raise BadInput(f"--png: {data.name} has no pictures; leave it out")
    from matplotlib.figure import Figure

    from fedmix.report.files import write_figure

    figure = Figure(figsize=(SHOWN, 2.6), layout="constrained")
    parts: Any = figure.subfigures(2, 1)
    for part, (title, pictures) in zip(parts, _pictures(data, how), strict=True):
        part.suptitle(title, fontsize=9)
        for axes, picture in zip(part.subplots(1, SHOWN, squeeze=False)[0], pictures, strict=False):
            axes.imshow(
                np.clip(np.moveaxis(picture, 0, -1), 0, 1).squeeze(), cmap="gray", vmin=0, vmax=1
            )
        for axes in part.axes:
            axes.set_axis_off()
    write_figure(path, figure)
