"""Ways to partition the rows of a data set among clients, each returned as rows by client."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.types import Array
from fedmix.core.validation import flag, is_number, is_whole, number, shown, whole
from fedmix.data.ragged import Ragged

Partition = Literal["classes", "random-classes", "shards", "dirichlet", "iid"]
TRIES = 10_000  # a draw takes microseconds, and a setting that fails this often will not succeed


def spread(
    labels: Array,
    clients: int,
    how: str,
    classes_per_client: int,
    alpha: float | None,
    rng: np.random.Generator,
) -> Ragged:
    """Partition rows in the way that `how` names, one of `Partition`.

    Args:
        labels: Labels of all rows, (n,).
        clients: Number of clients.
        how: One of `Partition`.
        classes_per_client: Number of classes (or of shards) per client; not used by the others.
        alpha: Concentration of a Dirichlet partition; None for the others.
        rng: Generator of the random draws.

    Raises:
        BadInput: A setting is wrong, or the rows cannot be partitioned so.
    """
    check_alpha(how, alpha)
    if alpha is not None:
        return dirichlet(labels, clients, alpha, rng)
    if how == "iid":
        return iid(len(labels), clients, rng)
    if how in ("classes", "random-classes"):
        return by_classes(labels, clients, classes_per_client, rng, balanced=how == "classes")
    return shards(labels, clients, classes_per_client, rng)


def check_alpha(how: str, alpha: float | None) -> None:
    """Raise BadInput for an unknown partition, or an `alpha` that is missing, unused or wrong."""
    if not isinstance(how, str) or how not in get_args(Partition):
        raise BadInput(f"no partition {shown(how)}; use one of {', '.join(get_args(Partition))}")
    if (alpha is None) == (how == "dirichlet"):
        problem = (
            "needs `alpha`, such as 0.5" if alpha is None else "does not use `alpha`; leave it out"
        )
        raise BadInput(f"partition {how!r} {problem}")
    if alpha is not None and not 0 < number("alpha", alpha) < np.inf:
        raise BadInput(f"alpha is {alpha}; a Dirichlet partition needs a positive number")


def by_classes(
    labels: Array, clients: int, per_client: int, rng: np.random.Generator, *, balanced: bool = True
) -> Ragged:
    """Give each client samples of only `per_client` classes; every sample has one client.

    If `balanced`, samples are sorted by label and cut into clients·per_client shards: as many of
    one class as of another (within one), and of equal size within a class (within one). Otherwise
    every client draws its classes uniformly, and the samples of a class are split evenly among the
    clients that drew it. Raises BadInput if the classes cannot be divided so.

    >>> rows = by_classes(np.array([0, 0, 1, 1, 2, 2]), 3, 2, np.random.default_rng(0))
    >>> rows.sizes.tolist()
    [2, 2, 2]
    """
    labels = _one_each(labels)
    _check_clients(len(labels), clients)
    classes, position, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    flag("balanced", balanced)
    if not is_whole(per_client) or per_client > len(classes):
        raise BadInput(
            f"{shown(per_client)} classes per client, but the data has {len(classes)}; use "
            f"1..{len(classes)}"
        )
    if clients * per_client < len(classes):
        raise BadInput(
            f"{clients} clients with {per_client} classes each cannot hold all {len(classes)} "
            f"classes; use at least {-(-len(classes) // per_client)} clients or more classes per "
            "client"
        )
    holds = (_deal if balanced else _draw)(sizes, clients, per_client, rng)
    owner = np.empty(len(labels), np.int64)
    for c in range(len(classes)):
        # permuted, so that no client always gets the longer shards
        holders = rng.permutation(np.flatnonzero(holds[:, c]))
        for client, rows in zip(
            holders,
            np.array_split(rng.permutation(np.flatnonzero(position == c)), len(holders)),
            strict=True,
        ):
            owner[rows] = client
    return Ragged.by_owner(owner, clients)


def _deal(sizes: Array, clients: int, per_client: int, rng: np.random.Generator) -> Array:
    """Deal the same number of shards of each class (within one): (clients, classes), bool."""
    shards, more = divmod(clients * per_client, len(sizes))
    remaining = np.full(len(sizes), shards)
    remaining[rng.choice(len(sizes), more, replace=False)] += 1
    _check_shards(sizes, remaining)
    holds = np.zeros((clients, len(sizes)), bool)
    # Invariant, with `left` clients to go: sum(remaining) = left·per_client, and remaining <= left
    # for every class. It holds at the start, since per_client <= classes. So at most per_client
    # classes have remaining == left, and at least per_client classes have any. A client that takes
    # all of the former and draws the rest from the others keeps the invariant for left - 1: no
    # client lacks distinct classes, and nothing remains at the end.
    for client in range(clients):
        left = clients - client
        forced = np.flatnonzero(remaining == left)
        weights = np.where(remaining < left, remaining, 0)
        free = per_client - len(forced)
        drawn = (
            rng.choice(len(sizes), free, replace=False, p=weights / weights.sum())
            if free
            else forced[:0]
        )
        holds[client, forced] = holds[client, drawn] = True
        remaining -= holds[client]
    return holds


def _draw(sizes: Array, clients: int, per_client: int, rng: np.random.Generator) -> Array:
    """Let each client draw its classes until every class has a client: (clients, classes), bool."""
    holds = np.zeros((clients, len(sizes)), bool)
    for _ in range(TRIES):
        holds[:] = False
        drawn = np.argsort(rng.random(holds.shape), axis=1)[:, :per_client]
        np.put_along_axis(holds, drawn, True, axis=1)
        if holds.any(axis=0).all():
            _check_shards(sizes, holds.sum(axis=0))
            return holds
    raise BadInput(
        f"{clients} clients that draw {per_client} of {len(sizes)} classes left one out in {TRIES} "
        "draws; use more clients, more classes per client, or the balanced partition"
    )


def shards(labels: Array, clients: int, per_client: int, rng: np.random.Generator) -> Ragged:
    """Partition of McMahan et al. 2017: sort by label, cut into shards, deal them out at random.

    Shards are of equal size (within one). A client may hold two shards of one class, and a shard
    may hold samples of two classes. Raises BadInput if there are too few samples.

    >>> labels = np.repeat(np.arange(3), 4)
    >>> rows = shards(labels, 3, 2, np.random.default_rng(4))
    >>> [labels[rows[client]].tolist() for client in range(3)]
    [[0, 0, 1, 1], [2, 2, 2, 2], [0, 0, 1, 1]]
    """
    labels = _one_each(labels)
    _check_clients(len(labels), clients)
    if not is_whole(per_client) or per_client > len(labels) // clients:
        raise BadInput(
            f"{shown(per_client)} shards per client; "
            f"{len(labels)} samples for {clients} clients allow 1..{len(labels) // clients}"
        )
    order = rng.permutation(len(labels))
    cut = np.array_split(order[np.argsort(labels[order], kind="stable")], clients * per_client)
    owner = np.empty(len(labels), np.int64)
    for client, shard in zip(rng.permutation(clients * per_client) % clients, cut, strict=True):
        owner[shard] = client
    return Ragged.by_owner(owner, clients)


def dirichlet(
    labels: Array, clients: int, alpha: float, rng: np.random.Generator, *, least: int = 1
) -> Ragged:
    """Divide each class among clients in proportions p ~ Dir(alpha, ..., alpha).

    The method is that of PFNM (Yurochkin et al. 2019) and FedMA (Wang et al. 2020); draws are
    repeated until every client has at least `least` samples. Large alpha gives even shares, small
    alpha few clients per class. Raises BadInput if no draw succeeds.

    >>> dirichlet(np.array([0, 1] * 6), 3, 1e9, np.random.default_rng(0)).sizes.tolist()
    [4, 4, 4]
    """
    labels = _one_each(labels)
    _check_clients(len(labels), clients)
    check_alpha("dirichlet", alpha)
    if whole("least", least, 0) * clients > len(labels):
        raise BadInput(
            f"{clients} clients cannot each have at least {least} of {len(labels)} samples; lower "
            "`least`"
        )
    classes, position, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    for _ in range(TRIES):
        shares = rng.dirichlet(np.full(clients, alpha), len(classes))
        cuts = np.rint(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
        cuts[:, -1] = sizes  # the sum of the shares may be off by rounding
        counts = np.diff(cuts, axis=1, prepend=0)
        if counts.sum(axis=0).min() >= least:
            break
    else:
        raise BadInput(
            f"alpha {alpha} left one of {clients} clients with fewer than {least} samples in "
            f"{TRIES} draws; use a larger alpha, fewer clients or a lower `least`"
        )
    owner = np.empty(len(labels), np.int64)
    for c in range(len(classes)):
        owner[rng.permutation(np.flatnonzero(position == c))] = np.repeat(
            np.arange(clients), counts[c]
        )
    return Ragged.by_owner(owner, clients)


def iid(count: int, clients: int, rng: np.random.Generator) -> Ragged:
    """Deal rows 0..count-1 out at random, in equal numbers (within one)."""
    _check_clients(count, clients)
    owner = np.empty(count, np.int64)
    owner[rng.permutation(count)] = np.arange(count) % clients
    return Ragged.by_owner(owner, clients)


def natural(owner_ids: Array | Sequence[str]) -> tuple[Ragged, list[str]]:
    """Make every owner a client; also return the owners' ids, sorted, in the clients' order.

    >>> rows, names = natural(["b", "a", "b"])
    >>> names, rows[0].tolist(), rows[1].tolist()
    (['a', 'b'], [1], [0, 2])
    """
    names, owner = np.unique(np.asarray(owner_ids), return_inverse=True)
    return Ragged.by_owner(owner, len(names)), [str(name) for name in names]


def share(index: Ragged, fraction: float, rng: np.random.Generator) -> Ragged:
    """Keep a random `fraction` of each client's rows, at least one.

    With an equal `rng`, the rows of a smaller fraction are among those of a larger one.
    """
    check_share(fraction)
    if fraction == 1:
        return index
    kept = []
    for client in range(len(index)):
        rows = rng.permutation(index[client])
        kept.append(np.sort(rows[: max(1, round(fraction * len(rows)))]))
    return Ragged.of(kept)


def check_share(fraction: float) -> None:
    """Raise BadInput unless the fraction is above 0 and at most 1."""
    if not is_number(fraction) or not 0 < fraction <= 1:
        raise BadInput(
            f"a share of {shown(fraction)} of the local data; use a number above 0 and at most 1"
        )


def subset(labels: Array, count: int, rng: np.random.Generator) -> Array:
    """Draw `count` rows, sorted, with every class within one of its proportional number.

    >>> rows = subset(np.array([0, 0, 0, 0, 1, 1]), 3, np.random.default_rng(0))
    >>> np.array([0, 0, 0, 0, 1, 1])[rows].tolist()
    [0, 0, 1]
    """
    labels = _one_each(labels)
    if not is_whole(count) or count > len(labels):
        raise BadInput(f"cannot take {shown(count)} of {len(labels)} samples; use 1..{len(labels)}")
    _, position, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quota, remainder = divmod(count * sizes, len(labels))
    order = rng.permutation(len(sizes))  # breaks ties of remainders at random
    largest = order[np.argsort(-remainder[order], kind="stable")]
    quota[largest[: count - quota.sum()]] += 1
    rows = [rng.permutation(np.flatnonzero(position == c))[: quota[c]] for c in range(len(sizes))]
    return np.sort(np.concatenate(rows))


def _one_each(labels: Array | Sequence[int]) -> Array:
    found = np.asarray(labels)
    if found.ndim != 1:
        raise BadInput(f"labels have shape {found.shape}; give one label for each sample, (n,)")
    return found


def _check_clients(samples: int, clients: int) -> None:
    if not is_whole(clients) or clients > whole("count", samples, 0):
        raise BadInput(f"{shown(clients)} clients for {samples} samples; use 1..{samples} clients")


def _check_shards(sizes: Array, shards: Array) -> None:
    short = np.flatnonzero(sizes < shards)
    if len(short):
        raise BadInput(
            f"a class of {sizes[short[0]]} samples cannot be cut into {shards[short[0]]} shards; "
            "use fewer clients or fewer classes per client"
        )
