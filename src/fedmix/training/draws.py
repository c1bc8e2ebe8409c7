"""All random draws of a round, made before it runs.

They are: the samples of each batch, means, partners, mixing ratios, crops and dropout keys. A
client's plan depends only on (seed, round, client) and the size of its data, so the simulator or
the client itself can draw it. Each purpose has its own stream: all algorithms with one seed see the
same clients, batches and order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedmix.core.rng import step_keys, stream, streams
from fedmix.core.types import Array
from fedmix.objectives.base import Needs
from fedmix.training.settings import Training

DRAWN = 1 << 16  # most places of a batch that are drawn, unless a client fills more


class ClientPlan(NamedTuple):
    """The draws of S local steps with batches of B.

    `rows` (S, B) are positions in the client's own data, `mask` (S, B) is False for padding, `keys`
    (S,) seed dropout. The others are None unless the objective needs them: `means` (S, 1 or B) are
    entries of the pool, `partners` (S, B) are positions in the client's own data or in that of all
    clients one after another, `lam` (S,) or (S, B) are mixing ratios, `crops` and
    `partner_crops` (S, B, 3) are row, column and flip. A plan of several clients has an axis of
    slots after that of steps.
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
        """Number of local steps."""
        return int(self.mask.shape[-2])  # the longest client has no padded steps

    def cut(self, width: int | None) -> "ClientPlan":
        """Return one client's draws for the first `width` places of each batch only."""
        return ClientPlan._make(d if d is None or d.ndim == 1 else d[:, :width] for d in self)


def choose_clients(seed: int, round_: int, clients: int, count: int) -> Array:
    """Choose clients of a round uniformly at random, without replacement.

    Args:
        seed: The seed of the run.
        round_: The round, counted from 0.
        clients: The number of all clients.
        count: The number of clients to choose.

    Returns:
        The chosen clients, in the order drawn.
    """
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
    """Draw the plan of one client.

    Args:
        seed: The seed of the run.
        round_: The round, counted from 0.
        client: The client's number.
        samples: Its number of samples.
        training: The settings of training.
        needs: What the objective needs.
        entries: The pool's entries that the client may draw.
        everyone: The number of samples of all clients, for global partners.
        pad: The margin of crops; 0 draws no crops.
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
    """Draw the plans of many clients, each the same as `draw_plan` returns for that client.

    A client draws at most DRAWN places of a batch, unless it has samples for more. That depends on
    its own samples only, so that it draws the same by itself.

    Args:
        seed: The seed of the run.
        round_: The round, counted from 0.
        clients: The clients' numbers.
        samples: The number of samples of each.
        training: The settings of training.
        needs: What the objective needs.
        entries: For each client, the pool's entries that it may draw.
        everyone: The number of samples of all clients, for global partners.
        pad: The margin of crops; 0 draws no crops.
        width: The largest number of samples of a client. Places of a batch beyond it are padding
            and are left out; draws stay the same. None keeps them.
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

        def shape(i: int) -> tuple[int, ...]:
            return (steps[i], B[i]) if needs.each else (steps[i],)

        lam = each("lambda", lambda rng, i: rng.beta(alpha, alpha, shape(i)).astype(np.float32))
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
    """Return the number of places of a batch to draw: DRAWN at most, or what the client fills."""
    return min(int(training.batch_size), max(samples, DRAWN))


def _rows(rng: np.random.Generator, samples: int, training: Training) -> Array:
    """Draw a new order for every epoch, in batches; the last batch is padded with row 0."""
    B = _places(samples, training)
    rows = np.zeros((training.epochs, -(-samples // B) * B), np.int64)
    rows[:, :samples] = [rng.permutation(samples) for _ in range(training.epochs)]
    return rows.reshape(-1, B)


def _mask(samples: int, training: Training) -> Array:
    B = _places(samples, training)
    return np.tile(np.arange(-(-samples // B) * B) < samples, training.epochs).reshape(-1, B)
