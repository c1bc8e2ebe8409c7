"""`fedmix audit`."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmix.cli import options
from fedmix.core.errors import BadInput, Interrupted
from fedmix.core.registry import DATA

if TYPE_CHECKING:
    from fedmix.data.federated import FederatedData
    from fedmix.exchange.settings import Exchange, GroupSize
    from fedmix.experiment.spec import Experiment
    from fedmix.privacy.audit import Attacked, Noise

VARIED = {
    "exchange.m": "--m",
    "exchange.noise": "--sigma",
    "exchange.average": "--average",
    "exchange.wait": "--wait",
}  # the settings that an audit varies, and their options

app = typer.Typer()


@app.command(
    cls=options.Command,
    epilog="Example:  fedmix audit digits --sigma 0,0.3 --seeds 10 --html audit.html",
)
def audit(
    what: options.What = "digits",
    sizes: Annotated[
        str, typer.Option("--m", help="Numbers of samples in a mean, split by commas.")
    ] = "1,2,5,10,50,all",
    sigma: Annotated[
        str | None,
        typer.Option(help="Deviations of the noise, split by commas; else the file's, or 0."),
    ] = None,
    epsilon: Annotated[
        str | None, typer.Option(help="Also the noise that each of these needs; with --clip.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="The bound on a sample's norm, input and label together.")
    ] = None,
    average: Annotated[
        int, typer.Option(help="How many means the server averages, where it does.")
    ] = 4,
    wait: Annotated[
        float, typer.Option(help="The share of clients that wait for each other, where they do.")
    ] = 0.25,
    delta: options.Delta = 1e-5,
    seed: options.Seed = None,
    seeds: options.Seeds = 1,
    settings: options.Set = None,
    data: options.Data = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures there.")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Attack what clients exchange: who is in it, whose it is, what it and its refresh show."""
    from fedmix.cli.output import check_outputs
    from fedmix.experiment.sweep import experiments
    from fedmix.privacy import audit as attacks
    from fedmix.privacy.audit.grid import steps
    from fedmix.report import audit_table as show
    from fedmix.runs.progress import console, counting, tell_written

    settings = settings or []
    check_outputs(html)
    _refuse_varied(settings)
    chosen = experiments(what, [None], None, seed, seeds, settings)
    by_seed, base = {e.seed: e for e in chosen}, _common_exchange(chosen, seeds, clip)
    noises = _noises(sigma, epsilon) or [attacks.Noise(base.noise)]
    grid = attacks.Grid(base, _sizes(sizes), noises, average, wait, delta=delta)
    if base.clip is None and any(noise.is_epsilon for noise in grid.noises):
        raise BadInput(
            "--epsilon needs a bound on samples, for without one no noise gives a guarantee; give "
            "--clip as well"
        )
    cells: list[Attacked] = []
    with counting(steps(seeds, grid), quiet or as_json) as listen:
        try:
            cells.extend(
                attacks.audit(lambda s: by_seed[s].build_data(data), list(by_seed), grid, listen)
            )
        except KeyboardInterrupt:
            if cells and not as_json:
                console(sys.stdout).print(show.terminal(cells, grid))
            raise Interrupted(
                "stopped; this is what was found so far, and no file was written"
            ) from None
    given = {
        "m": sizes,
        "sigma": sigma,
        "epsilon": epsilon,
        "clip": clip,
        "average": average,
        "wait": wait,
        "delta": delta,
        "seed": seed,
        "seeds": seeds,
    }
    about = _about(what, given, settings, chosen[0].build_data(data), list(by_seed))
    if as_json:
        print(show.as_json(cells, grid, about), end="")
    else:
        console(sys.stdout).print(show.terminal(cells, grid))
    if html:
        from fedmix.report.audit_page import write_html

        write_html(cells, grid, about, tuple(about["shape"]), html)
        tell_written(html)


def _refuse_varied(settings: Sequence[str]) -> None:
    """Refuse settings that the audit would replace by values of its own."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if option := VARIED.get(name):
            raise BadInput(f"--set {name}: an audit varies it; use {option}")


def _common_exchange(chosen: Sequence["Experiment"], seeds: int, clip: float | None) -> "Exchange":
    """Return the exchange of these experiments, which differ in their seeds only; refuse one that
    these attacks do not fit.
    """
    name, how = chosen[0].data.name, chosen[0].build_exchange()
    if len(chosen) != seeds or how is None:
        raise BadInput(
            "an audit is of one exchange: give one value for each --set, and an algorithm that "
            "exchanges means"
        )
    pictures = [known for known in DATA if DATA.entry(known).facts.get("pictures")]
    if name not in pictures:
        raise BadInput(
            f"{name} holds no pictures with classes, which these attacks need; choose one of "
            f"{', '.join(pictures)}"
        )
    if how.source != "pool":
        raise BadInput(
            f"exchange.source={how.source!r} sends nothing that could be attacked; use 'pool'"
        )
    return how if clip is None else replace(how, clip=clip)


def _sizes(text: str) -> "list[GroupSize]":
    """Parse `1,10,0.5,all` into numbers of samples, fractions and "all"."""
    from fedmix.exchange.settings import Exchange

    return list(
        dict.fromkeys(Exchange(m=options.group_size(word)).m for word in _words("--m", text))
    )


def _noises(sigma: str | None, epsilon: str | None) -> "list[Noise]":
    """Parse --sigma into noises, then --epsilon into the noises that each ε needs."""
    from fedmix.exchange.settings import Exchange
    from fedmix.privacy.audit import Noise

    found: list[Noise] = []
    for option, text, is_epsilon in (("--sigma", sigma, False), ("--epsilon", epsilon, True)):
        for word in _words(option, text) if text is not None else []:
            try:
                found.append(Noise(float(word), is_epsilon))
            except ValueError:
                raise BadInput(
                    f"{option} {word!r} is no number; give numbers, such as 0.1,0.3"
                ) from None
            if not is_epsilon:
                Exchange(noise=found[-1].amount)  # raises if it is negative or not finite
    return list(dict.fromkeys(found))


def _words(option: str, text: str) -> list[str]:
    if not (words := options.listed(text)):
        raise BadInput(f"{option} is empty; give at least one value")
    return words


def _about(
    what: str,
    given: dict[str, Any],
    settings: Sequence[str],
    data: "FederatedData",
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Return what was audited, the command that repeats it, and versions.

    It holds no path but `what`, since results are meant to be shown.
    """
    import torch

    from fedmix.runs.environment import environment

    words = ["fedmix", "audit", what]
    for option, value in given.items():
        words += [f"--{option}", str(value)] if value is not None else []
    command = shlex.join([*words, *(w for s in settings for w in ("--set", s))])
    known = environment(torch.device("cpu"), command)
    return {
        "data": data.name,
        "clients": len(data.clients),
        "samples": int(data.clients.sizes.sum()),
        "shape": data.input_shape,
        "seeds": list(seeds),
        **{
            name: known[name]
            for name in ("command", "started", "commit", "fedmix", "python", "torch", "numpy")
        },
    }
