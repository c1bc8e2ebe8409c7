"""What `fedmix audit` does."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedmix.cli.commands import check_outputs, experiments
from fedmix.cli.words import group_size, listed
from fedmix.core.errors import BadInput, Interrupted
from fedmix.data.federated import FederatedData
from fedmix.exchange.settings import Exchange, GroupSize
from fedmix.experiment.spec import Experiment
from fedmix.privacy.audit import Attacked, Grid, Noise, audit
from fedmix.privacy.audit.grid import steps
from fedmix.runs.environment import environment
from fedmix.runs.progress import console, counting, tell_written

PICTURES = ("digits", "femnist", "cifar10", "cifar100")
VARIED = {
    "exchange.m": "--m",
    "exchange.noise": "--sigma",
    "exchange.average": "--average",
    "exchange.wait": "--wait",
}


def attack(
    what: str,
    sizes: str,
    sigma: str | None,
    epsilon: str | None,
    clip: float | None,
    average: int,
    wait: float,
    delta: float,
    seed: int | None,
    seeds: int,
    settings: Sequence[str],
    root: Path | None,
    *,
    html: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """`fedmix audit`."""
    from fedmix.privacy.audit import show

    check_outputs(html)
    _refuse_varied(settings)
    chosen = experiments(what, [None], None, seed, seeds, settings)
    by_seed, base = {e.seed: e for e in chosen}, _base(chosen, seeds, clip)
    grid = Grid(
        base,
        _sizes(sizes),
        _noises(sigma, epsilon) or [Noise(base.noise)],
        average,
        wait,
        delta=delta,
    )
    if base.clip is None and any(noise.is_epsilon for noise in grid.noises):
        raise BadInput(
            "--epsilon needs a bound on samples, for without one no noise gives a guarantee; give "
            "--clip as well"
        )
    cells: list[Attacked] = []
    with counting(steps(seeds, grid), quiet or as_json) as listen:
        try:
            cells.extend(audit(lambda s: by_seed[s].build_data(root), list(by_seed), grid, listen))
        except KeyboardInterrupt:
            if cells and not as_json:
                console(sys.stdout).print(show.terminal(cells, grid))
            raise Interrupted(
                "stopped; this is what was found so far, and no file was written"
            ) from None
    words = {
        "m": sizes,
        "sigma": sigma,
        "epsilon": epsilon,
        "clip": clip,
        "average": average,
        "wait": wait,
        "delta": delta,
    }
    about = _about(
        what,
        words | {"seed": seed, "seeds": seeds},
        settings,
        chosen[0].build_data(root),
        list(by_seed),
    )
    if as_json:
        print(show.as_json(cells, grid, about), end="")
    else:
        console(sys.stdout).print(show.terminal(cells, grid))
    if html:
        from fedmix.privacy.audit.page import write_html

        write_html(cells, grid, about, tuple(about["shape"]), html)
        tell_written(html)


def _refuse_varied(settings: Sequence[str]) -> None:
    """Refuse settings that would not be heard, for the audit tries values of its own."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if option := VARIED.get(name):
            raise BadInput(f"--set {name}: an audit varies it; use {option}")


def _base(chosen: Sequence[Experiment], seeds: int, clip: float | None) -> Exchange:
    """The exchange that these experiments, a seed each, have in common, if it can be attacked."""
    name, how = chosen[0].data.name, chosen[0].build_exchange()
    if len(chosen) != seeds or how is None:
        raise BadInput(
            "an audit is of one exchange: give one value for each --set, and an algorithm that "
            "exchanges means"
        )
    if name not in PICTURES:
        raise BadInput(
            f"{name} holds no pictures with classes, which these attacks need; choose one of "
            f"{', '.join(PICTURES)}"
        )
    if how.source != "pool":
        raise BadInput(
            f"exchange.source={how.source!r} sends nothing that could be attacked; use 'pool'"
        )
    return how if clip is None else replace(how, clip=clip)


def _sizes(text: str) -> list[GroupSize]:
    """`1,10,0.5,all` as numbers of samples, fractions and "all"."""
    return list(dict.fromkeys(Exchange(m=group_size(word)).m for word in _words("--m", text)))


def _noises(sigma: str | None, epsilon: str | None) -> list[Noise]:
    """Every σ, then as much noise as every ε needs."""
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
                Exchange(noise=found[-1].amount)
    return list(dict.fromkeys(found))


def _words(option: str, text: str) -> list[str]:
    if not (words := listed(text)):
        raise BadInput(f"{option} is empty; give at least one value")
    return words


def _about(
    what: str,
    options: dict[str, Any],
    settings: Sequence[str],
    data: FederatedData,
    seeds: Sequence[int],
) -> dict[str, Any]:
    """What was audited, the command that does it again, and versions; no paths but the one that was
    named.
    """
    words = ["fedmix", "audit", what]
    for option, value in options.items():
        words += [f"--{option}", str(value)] if value is not None else []
    known = environment(
        torch.device("cpu"), shlex.join([*words, *(w for s in settings for w in ("--set", s))])
    )
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
