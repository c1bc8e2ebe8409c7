"""Every draw of a round, made ahead: which samples in which batch, which mean, partner, ratio, crop
and dropout key.

A client's plan depends on (seed, round, client) and the size of its data alone, so it can be drawn
by the simulator or by the client itself. Each purpose has its own stream: all algorithms with one
seed see the same clients, batches and order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedmix.core.rng import step_keys, stream, streams
from fedmix.core.types import Array
from fedmix.objectives.base import Needs
from fedmix.training.settings import Training

DRAWN = 1 << 16  # places of a batch, where a client does not fill so many


class ClientPlan(NamedTuple):
    """The draws of S local steps with batches of B (of several clients once arranged: steps, then
    slots).

    `rows` (S, B) are positions in the client's own data, `mask` (S, B) is False for padding, `keys`
    (S,) seed dropout. Where asked for: `means` (S, 1 or B) are entries of the pool, `partners` (S,
    B) positions in the client's own data or in that of all clients one after another, `lam` (S,)
    mixing ratios, `crops` and `partner_crops` (S, B, 3) row, column and flip.
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

    def cut(self, width: int | None) -> "ClientPlan":
        """One client's draws without the places of a batch from `width` on."""
        return ClientPlan._make(d if d is None or d.ndim == 1 else d[:, :width] for d in self)


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

    `entries` are the pool's entries that it may use, `everyone` is the number of samples of all
    clients (for global partners), `pad` the margin of crops.
    """
    given = None if entries is None else [entries]
    [plan] = draw_plans(
        seed,
        round_,
        [client],
        [samples],
        training,
        needs,
        entries=given,
        everyone=everyone,
        pad=pad,
    )
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
    """The plans of many clients, one purpose after another: each is what `draw_plan` gives that
    client.

    Where no client fills a batch, `width` is as far as it is filled, and the padding beyond is left
    out; draws stay as they are. Of a batch that a client cannot fill, DRAWN places are drawn for at
    most. That depends on its own samples alone, so that a client draws the same by itself.
    """
    B, steps = [_places(n, training) for n in samples], [training.steps(n) for n in samples]
    places = np.asarray(clients)

    def each(purpose: str, draw: Callable[[np.random.Generator, int], Array]) -> list[Array]:
        return [draw(rng, i) for i, rng in enumerate(streams(seed, purpose, round_, places))]

    def crops(purpose: str) -> list[Array]:
        bounds = [2 * pad + 1, 2 * pad + 1, 2]
        return each(
            purpose, lambda rng, i: rng.integers(0, bounds, (steps[i], B[i], 3)).astype(np.uint8)
        )

    masks = {n: _mask(n, training) for n in set(samples)}
    absent: list[None] = [None] * len(steps)
    means: Sequence[Array | None] = absent
    partners: Sequence[Array | None] = absent
    lam: Sequence[Array | None] = absent
    if needs.means is not None and entries is not None:
        per = [1] * len(steps) if needs.means == "batch" else B
        means = each(
            "means", lambda rng, i: entries[i][rng.integers(0, len(entries[i]), (steps[i], per[i]))]
        )
    if needs.partner is not None:
        among = samples if needs.partner == "local" else [everyone] * len(steps)
        partners = each("partners", lambda rng, i: rng.integers(0, among[i], (steps[i], B[i])))
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
    return [ClientPlan._make(of_client).cut(width) for of_client in zip(*fields, strict=True)]


def _places(samples: int, training: Training) -> int:
    """Of a batch, as many as this client can fill, or DRAWN where that is more; batches stay the
    same.
    """
    return min(int(training.batch_size), max(samples, DRAWN))


def _rows(rng: np.random.Generator, samples: int, training: Training) -> Array:
    """Every epoch in an order of its own, in batches, the last one filled up with row 0."""
    B = _places(samples, training)
    rows = np.zeros((training.epochs, -(-samples // B) * B), np.int64)
    rows[:, :samples] = [rng.permutation(samples) for _ in range(training.epochs)]
    return rows.reshape(-1, B)


def _mask(samples: int, training: Training) -> Array:
    B = _places(samples, training)
    return np.tile(np.arange(-(-samples // B) * B) < samples, training.epochs).reshape(-1, B)
