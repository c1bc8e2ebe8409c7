"""Every draw of a round, made ahead: which samples in which batch, which mean, partner, ratio, crop and dropout key.

A client's plan depends on (seed, round, client) and the size of its data alone, so it can be drawn by the simulator or by the
client itself. Each purpose has its own stream: all algorithms with one seed see the same clients, batches and order.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmix.objectives.base import Needs
from fedmix.packing import Stay, length
from fedmix.rng import step_keys, stream
from fedmix.training import Training

Array = np.ndarray[Any, Any]


class ClientPlan(NamedTuple):
    """The draws of S local steps with batches of B (of K clients at once, with a leading axis, once stacked).

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

    def map(self, change: Callable[[Array], Array]) -> "ClientPlan":
        """The plan with every array that is there changed."""
        return ClientPlan._make(None if f is None else change(f) for f in self)

    @property
    def steps(self) -> int:
        return int(self.mask.any(-1).sum(-1).max())


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
    B, per_epoch = training.batch_size, -(-samples // training.batch_size)
    steps = training.steps(samples)

    def rng(purpose: str) -> np.random.Generator:
        return stream(seed, purpose, round_, client)

    def crops(purpose: str) -> Array:
        draws = rng(purpose).integers(0, [2 * pad + 1, 2 * pad + 1, 2], (steps, B, 3))
        return draws.astype(np.uint8)

    order = rng("batches")
    rows = np.zeros((training.epochs, per_epoch * B), np.int64)
    rows[:, :samples] = [order.permutation(samples) for _ in range(training.epochs)]
    mask = np.tile(np.arange(per_epoch * B) < samples, training.epochs)

    means = partners = lam = None
    if needs.means is not None and entries is not None:
        means = entries[rng("means").integers(0, len(entries), (steps, 1 if needs.means == "batch" else B))]
    if needs.partner is not None:
        among = samples if needs.partner == "local" else everyone
        partners = rng("partners").integers(0, among, (steps, B))
    if needs.alpha is not None:
        lam = rng("lambda").beta(needs.alpha, needs.alpha, steps).astype(np.float32)
    return ClientPlan(
        rows.reshape(steps, B),
        mask.reshape(steps, B),
        step_keys(seed, round_, client, steps),
        means,
        partners,
        lam,
        crops("crops") if pad else None,
        crops("partner-crops") if pad and partners is not None else None,
    )


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
