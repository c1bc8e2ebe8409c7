"""`fedmix privacy` with DP-FedAvg: one ε for all that leaves clients, before anything runs."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmix.core.errors import BadInput
from fedmix.core.validation import whole

if TYPE_CHECKING:
    from fedmix.exchange import Exchange
    from fedmix.experiment.spec import Experiment
    from fedmix.privacy.whole import NoisySums, Whole


def tell(
    experiment: "Experiment",
    means: Mapping[str, Any],
    *,
    noise_multiplier: float | None,
    rounds: int | None,
    per_round: int | None,
    clients: int | None,
    epsilon: float | None,
    delta: float,
    releases: int,
    root: Path | None,
    as_json: bool,
) -> None:
    """Print the ε of a noise multiplier, or the multiplier for an ε, with all else that leaves.

    Args:
        experiment: Its rounds, clients, means, head and noise are taken where nothing else is said.
        means: Settings of the exchange that were given besides.
        noise_multiplier: The noise on the sum of updates.
        rounds: Number of rounds.
        per_round: K.
        clients: N.
        epsilon: The ε that is asked for; None for the ε of a noise.
        delta: δ.
        releases: How often a client's means are sent.
        root: A folder with the hub's files.
        as_json: Print JSON.

    Raises:
        BadInput: No noise is given, or the options contradict each other.
    """
    from fedmix.privacy.accounting import guarantee, nonnegative
    from fedmix.privacy.of_run import sent_besides, why_no_head
    from fedmix.privacy.whole import NoisySums, Whole, least_multiplier, together
    from fedmix.runs.progress import console

    if epsilon is not None and noise_multiplier is not None:
        raise BadInput("--epsilon asks for the noise; leave --noise-multiplier out")
    if (rule := experiment.build_updates()) and noise_multiplier is None and epsilon is None:
        noise_multiplier = rule.noise_multiplier or None
    if noise_multiplier is None and epsilon is None:
        raise BadInput(
            "updates carry no noise; give --noise-multiplier, or --epsilon to find the least"
        )
    rounds = experiment.rounds if rounds is None else rounds
    how, layer = _means(experiment, means), getattr(experiment.objective, "layer", 0)
    data = experiment.build_data(root) if clients is None or (how and not layer) else None
    if clients is None:
        assert data is not None
        clients = len(data.clients)
    whole("--clients", clients)
    chosen = experiment.build_training().per_round(clients) if per_round is None else per_round
    whole("--rounds", rounds)
    whole("--per-round", chosen)
    if chosen > clients:
        raise BadInput(f"--per-round {chosen} is more than the {clients} clients; lower it")
    others: dict[str, float] = {}
    reason = sent_besides(experiment.build_objective().needs, data)
    if not reason and how is not None:
        times = rounds if layer else releases
        promised = guarantee(
            how, 1, delta, releases=times, level="client",
            nonnegative=not layer and data is not None and nonnegative(data),
        )  # fmt: skip
        others["means of one release" if times == 1 else f"means of {times} releases"] = promised.mu
        reason = promised.reason and f"the means: {promised.reason}"
    if head := experiment.build_head():
        fits = head.fits(rounds, experiment.evaluate_every)
        statistics = guarantee(head.exchange, 1, delta, releases=fits, level="client")
        others["a head's statistics"] = statistics.mu
        why = why_no_head(head) or statistics.reason
        reason = reason or (why and f"the head's statistics: {why}")
    found = Whole(math.inf, delta, reason=reason)
    if not reason:
        if noise_multiplier is None:
            assert epsilon is not None
            mu = math.hypot(*others.values())
            noise_multiplier = least_multiplier(epsilon, rounds, chosen, clients, delta, mu)
        found = together(NoisySums(rounds, noise_multiplier, chosen, clients), others, delta)
    if as_json:
        print(json.dumps(_values(found, noise_multiplier, rounds, chosen, clients), indent=1))
        return
    if not found:
        console(sys.stdout).print(str(found), soft_wrap=True)
        return
    assert noise_multiplier is not None
    _show(found, NoisySums(rounds, noise_multiplier, chosen, clients), sought=epsilon is not None)


def _show(found: "Whole", sums: "NoisySums", *, sought: bool) -> None:
    """Print a guarantee, its parts, and what it takes for granted.

    Args:
        found: The guarantee.
        sums: The sums of updates in it.
        sought: Whether their noise is the least for an ε that was asked for.
    """
    from fedmix.privacy.accounting import upwards
    from fedmix.privacy.whole import said
    from fedmix.runs.progress import console

    out, noise = console(sys.stdout), sums.noise_multiplier
    shown = upwards(noise, 4) if sought else f"{noise:.4g}"
    if sought:
        out.print(f"needed: updates.noise_multiplier={shown}")
    out.print(
        f"{said(sums)}, noise multiplier {shown} (on a weight's average "
        f"{noise / sums.chosen:.3g} times updates.clip), δ = {found.delta:g}:"
    )
    for part, alone in found.parts.items() if len(found.parts) > 1 else ():
        out.print(f"  {part.partition(',')[0]:28} ε = {upwards(alone, 4)} alone")
    out.print(f"  {'one client replaced':28} ε = {upwards(found.epsilon, 4)}")
    out.print("The server adds this noise and is trusted. Sizes and the clients' losses are known.")
    if sums.chosen < sums.clients:
        out.print(
            "Who is chosen is taken to be a secret. On Flower it is none: there, plan with "
            f"--clients {sums.chosen} --per-round {sums.chosen}."
        )


def _means(experiment: "Experiment", given: Mapping[str, Any]) -> "Exchange | None":
    """Return the exchange of means that leave clients; None if none do."""
    from fedmix.exchange import Exchange

    written = experiment.build_exchange()
    if given:
        return replace(written or Exchange(), **given)
    return None if written is None or written.source != "pool" else written


def _values(
    found: "Whole", noise_multiplier: float | None, rounds: int, per_round: int, clients: int
) -> dict[str, Any]:
    """Return settings and guarantee for --json."""
    return {
        "rounds": rounds,
        "per_round": per_round,
        "clients": clients,
        "noise_multiplier": noise_multiplier,
        "delta": found.delta,
        "epsilon": found.epsilon if found else None,
        "parts": found.parts,
        "none": found.reason,
    }
