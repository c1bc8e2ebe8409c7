"""Every draw of a round, made ahead: which samples in which batch, which mean, partner, ratio, crop and dropout key.

A client's plan depends on (seed, round, client) and the size of its data alone, so it can be drawn by the simulator or by the
client itself. Each purpose has its own stream: all algorithms with one seed see the same clients, batches and order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedmix.objectives.base import Needs
from fedmix.packing import Stay, length
from fedmix.rng import step_keys, stream, streams
from fedmix.training import Training
from fedmix.types import Array


class ClientPlan(NamedTuple):
    """The draws of S local steps with batches of B (of several clients once arranged: steps, then slots).

    `rows` (S, B) are positions in the client's own data, `mask` (S, B) is False for padding, `keys` (S,) seed dropout. Where
    asked for: `means` (S, 1 or B) are entries of the pool, `partners` (S, B) positions in the client's own data or in that of
    all clients one after another, `lam` (S,) mixing ratios, `crops` and `partner_crops` (S, B, 3) row, column and flip.
    """

    rows: Array
    mask: Array
    keys: Array
    means: Array | None = None
    partners: Array | None = None
    lam: Array | None = None
    crops: Array | None = None
    partner_crops: Array | None = None

    @property
    def steps(self) -> int:
        return int(self.mask.shape[-2])  # no step of the longest client is padding


def choose_clients(seed: int, round_: int, clients: int, count: int) -> Array:
    """`count` of `clients` at random, in the order drawn."""
    return stream(seed, "clients", round_).choice(clients, count, replace=False)


def draw_plan(
    seed: int,
    round_: int,
    client: int,
    samples: int,
    training: Training,
    needs: Needs,
    *,
    entries: Array | None = None,
    everyone: int = 0,
    pad: int = 0,
) -> ClientPlan:
    """The plan of one client with `samples` samples.

    `entries` are the pool's entries that it may use, `everyone` is the number of samples of all clients (for global partners),
    `pad` the margin of crops.
    """
    given = None if entries is None else [entries]
    [plan] = draw_plans(seed, round_, [client], [samples], training, needs, entries=given, everyone=everyone, pad=pad)
    return plan


def draw_plans(
    seed: int,
    round_: int,
    clients: Sequence[int],
    samples: Sequence[int],
    training: Training,
    needs: Needs,
    *,
    entries: Sequence[Array] | None = None,
    everyone: int = 0,
    pad: int = 0,
    width: int | None = None,
) -> list[ClientPlan]:
    """The plans of many clients, one purpose after another: each is what `draw_plan` gives that client.

    Where no client fills a batch, `width` is as far as it is filled, and the padding beyond is left out; draws stay as they are.
    """
    B, steps = training.batch_size, [training.steps(n) for n in samples]
    places = np.asarray(clients)

    def each(purpose: str, draw: Callable[[np.random.Generator, int], Array]) -> list[Array]:
        return [draw(rng, i) for i, rng in enumerate(streams(seed, purpose, round_, places))]

    def crops(purpose: str) -> list[Array]:
        bounds = [2 * pad + 1, 2 * pad + 1, 2]
        return each(purpose, lambda rng, i: rng.integers(0, bounds, (steps[i], B, 3)).astype(np.uint8))

    masks = {n: _mask(n, training) for n in set(samples)}
    absent: list[None] = [None] * len(steps)
    means: Sequence[Array | None] = absent
    partners: Sequence[Array | None] = absent
    lam: Sequence[Array | None] = absent
    if needs.means is not None and entries is not None:
        per = 1 if needs.means == "batch" else B
        means = each("means", lambda rng, i: entries[i][rng.integers(0, len(entries[i]), (steps[i], per))])
    if needs.partner is not None:
        among = samples if needs.partner == "local" else [everyone] * len(steps)
        partners = each("partners", lambda rng, i: rng.integers(0, among[i], (steps[i], B)))
    if needs.alpha is not None:
        alpha = needs.alpha
        lam = each("lambda", lambda rng, i: rng.beta(alpha, alpha, steps[i]).astype(np.float32))
    fields = (
        each("batches", lambda rng, i: _rows(rng, samples[i], training)),
        [masks[n] for n in samples],
        each("dropout", lambda rng, i: step_keys(rng, steps[i])),
        means,
        partners,
        lam,
        crops("crops") if pad else absent,
        crops("partner-crops") if pad and needs.partner is not None else absent,
    )

    def cut(draws: Array | None) -> Array | None:
        return draws if draws is None or draws.ndim == 1 else draws[:, :width]

    return [ClientPlan._make(map(cut, of_client)) for of_client in zip(*fields, strict=True)]


def _rows(rng: np.random.Generator, samples: int, training: Training) -> Array:
    """Every epoch in an order of its own, in batches, the last one filled up with row 0."""
    B, per_epoch = training.batch_size, -(-samples // training.batch_size)
    rows = np.zeros((training.epochs, per_epoch * B), np.int64)
    rows[:, :samples] = [rng.permutation(samples) for _ in range(training.epochs)]
    return rows.reshape(-1, B)


def _mask(samples: int, training: Training) -> Array:
    B, per_epoch = training.batch_size, -(-samples // training.batch_size)
    return np.tile(np.arange(per_epoch * B) < samples, training.epochs).reshape(-1, B)


def arrange(plans: Sequence[ClientPlan], stays: Sequence[Stay], slots: int) -> ClientPlan:
    """Plans of several clients as one of (steps, slots, ...), each where it stays; masked where nobody does.

    This is the one place that knows about ragged clients.
    """
    steps = length(stays)

    def placed(draws: tuple[Array, ...]) -> Array:
        together = np.zeros((steps, slots, *draws[0].shape[1:]), draws[0].dtype)
        for stay in stays:
            together[stay.start : stay.stop, stay.slot] = draws[stay.client]
        return together

    return ClientPlan._make(None if f[0] is None else placed(f) for f in zip(*plans, strict=True))
