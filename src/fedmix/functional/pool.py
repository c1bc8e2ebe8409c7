"""Means to train against: joined, drawn from, and as bytes for any transport."""

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedmix.core.errors import BadInput, described
from fedmix.core.validation import instance, whole
from fedmix.exchange import Releases, build

_kept: WeakKeyDictionary["MeanPool", WeakKeyDictionary["MeanPool", Tensor]] = WeakKeyDictionary()
"""Positions of the entries of a pool that another has not."""
FILE = "these are no means: give what MeanPool.to_bytes or save wrote"


class MeanPool:
    """Mean inputs (n, ...) and mean label vectors (n, C), in float32.

    Args:
        x: The mean inputs.
        y: Their label vectors.

    Raises:
        BadInput: They are no means: of other shapes, not floating-point, empty, or not finite.

    >>> pool = MeanPool(torch.zeros(4, 1, 8, 8), torch.full((4, 10), 0.1))
    >>> pool
    MeanPool(4 means of shape (1, 8, 8), label vectors of 10, on cpu)
    >>> mean_x, mean_y = pool.draw(1)
    >>> mean_x.shape, mean_y.shape
    (torch.Size([1, 1, 8, 8]), torch.Size([1, 10]))
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        for name, value in (("x", x), ("y", y)):
            instance(name, value, Tensor, "give a tensor of means")
            if not value.is_floating_point():
                raise BadInput(f"MeanPool: {name} is {value.dtype}; give floating-point means")
        if x.ndim < 2 or y.ndim != 2 or len(x) != len(y) or not x.numel() or not y.numel():
            raise BadInput(
                f"MeanPool: x has shape {tuple(x.shape)} and y {tuple(y.shape)}; give mean inputs "
                "(n, ...) and a label vector (n, C) for each, one at least"
            )
        if x.device != y.device:
            raise BadInput(f"MeanPool: x is on {x.device} and y on {y.device}; move one of them")
        self.x, self.y = x.detach().float(), y.detach().float()
        if not (torch.isfinite(self.x).all() & torch.isfinite(self.y).all()):
            raise BadInput("MeanPool: these means hold NaN or infinity; leave out who sent them")

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} means of shape {tuple(self.x.shape[1:])}, label "
            f"vectors of {self.y.shape[1]}, on {self.x.device})"
        )

    @staticmethod
    def merge(
        pools: Iterable["MeanPool"], average: int = 1, generator: torch.Generator | None = None
    ) -> "MeanPool":
        """Return one pool of all means, shuffled, so that their order does not tell whose they are.

        Args:
            pools: The pools, of one shape.
            average: How many random means are averaged into each entry, as a server may do.
            generator: Shuffles them; by default torch's own.

        Raises:
            BadInput: There is no pool, their shapes differ, or they have fewer means than
                `average`.

        >>> one = MeanPool(torch.zeros(2, 3), torch.ones(2, 1))
        >>> two = MeanPool(torch.ones(2, 3), torch.ones(2, 1))
        >>> MeanPool.merge([one, two], average=4).x
        tensor([[0.5000, 0.5000, 0.5000]])
        """
        given = [pools] if isinstance(pools, MeanPool) else pools
        parts = list(instance("pools", given, Iterable, "give MeanPools"))
        for part in parts:
            instance("pools", part, MeanPool, "give MeanPools: MeanPool.from_bytes reads them")
        whole("average", average)
        if not parts:
            raise BadInput("MeanPool.merge needs one pool at least")
        first = parts[0]
        for part in parts:
            shapes = (part.x.shape[1:], part.y.shape[1:])
            if shapes != (first.x.shape[1:], first.y.shape[1:]):
                raise BadInput(
                    f"these pools do not fit: {first!r} and {part!r}; all need inputs of one shape "
                    "and the same number of classes (means_of(..., classes=))"
                )
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        if average > len(owner):
            raise BadInput(f"average={average} is more than the {len(owner)} means; lower it")
        where = first.x.device
        x, y = (torch.cat([p.cpu() for p in ps]) for ps in zip(*[(p.x, p.y) for p in parts]))  # noqa: B905
        seed = int(torch.randint(2**62, (), generator=generator, device=_device(generator)))
        joined = build(Releases(owner, x, y), average, np.random.default_rng(seed))
        return MeanPool(joined.x, joined.y).to(where)

    def draw(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        exclude: "MeanPool | None" = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw n entries with replacement; return mean inputs (n, ...) and label vectors (n, C).

        One serves a whole batch, as in the paper; `draw(len(x))` gives each sample its own.

        Args:
            n: The number of entries.
            generator: Draws them; by default torch's own.
            exclude: Means that are not drawn, such as one's own: entries of these values.

        Raises:
            BadInput: `n` is below 1, or no entry is left.
        """
        whole("n", n)
        allowed = None if exclude is None else self._without(exclude)
        count = len(self) if allowed is None else len(allowed)
        drawn = torch.randint(count, (n,), generator=generator, device=_device(generator))
        rows = drawn.to(self.x.device)
        rows = rows if allowed is None else allowed[rows]
        return self.x[rows], self.y[rows]

    def without(self, other: "MeanPool") -> "MeanPool":
        """Return the pool without the entries that `other` has too, compared by their values.

        Entries of which the server averaged several are not found.

        Raises:
            BadInput: No entry is left.
        """
        rows = self._without(other)
        return MeanPool(self.x[rows], self.y[rows])

    def _without(self, other: "MeanPool") -> Tensor:
        """Positions of the entries that `other` has not."""
        kept_beside = _kept.setdefault(self, WeakKeyDictionary())
        if other not in kept_beside:
            instance("exclude", other, MeanPool, "give the MeanPool whose means to leave out")
            theirs = set(other._rows())
            kept = [i for i, row in enumerate(self._rows()) if row not in theirs]
            if not kept:
                raise BadInput("every mean of this pool is excluded; merge means of others into it")
            kept_beside[other] = torch.tensor(kept, device=self.x.device)
        return kept_beside[other]

    def _rows(self) -> list[bytes]:
        both = torch.cat([self.x.flatten(1), self.y], 1).cpu().numpy()
        return [row.tobytes() for row in both]

    def to(self, device: torch.device | str) -> "MeanPool":
        """Return the pool on another device."""
        return MeanPool(self.x.to(device), self.y.to(device))

    def to_bytes(self) -> bytes:
        """Return the pool as bytes: numpy's npz format, with the arrays x and y only."""
        file = io.BytesIO()
        np.savez(file, x=self.x.cpu().numpy(), y=self.y.cpu().numpy())
        return file.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> "MeanPool":
        """Read what `to_bytes` gave; nothing in it is executed.

        Raises:
            BadInput: These are no means.

        >>> pool = MeanPool(torch.rand(4, 3), torch.rand(4, 2))
        >>> torch.equal(MeanPool.from_bytes(pool.to_bytes()).x, pool.x)
        True
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise BadInput(f"`data` is {described(data)}; {FILE}")
        try:
            return MeanPool(*_arrays(bytes(data)))
        except BadInput:
            raise
        except Exception as error:  # a stranger's bytes can break a reader in many ways
            raise BadInput(FILE) from error

    def save(self, path: str | Path) -> None:
        """Write the pool to a file, as `to_bytes`.

        Raises:
            BadInput: The file cannot be written.
        """
        try:
            Path(path).write_bytes(self.to_bytes())
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error

    @staticmethod
    def load(path: str | Path) -> "MeanPool":
        """Read what `save` wrote.

        Raises:
            BadInput: The file cannot be read, or holds no means.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from error
        return MeanPool.from_bytes(data)


def _arrays(data: bytes) -> list[Tensor]:
    """The two arrays of a pool; BadInput for other contents, or more than the bytes can hold."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = archive.infolist()
        plain = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
        if sorted(part.filename for part in parts) != ["x.npy", "y.npy"] or not plain:
            raise BadInput(FILE)
    found: list[Tensor] = []
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for name in ("x", "y"):
            array: Any = arrays[name]
            if array.dtype != np.float32:
                raise BadInput(FILE)
            found.append(torch.from_numpy(array))
    return found


def _device(generator: torch.Generator | None) -> torch.device:
    if generator is None:
        return torch.device("cpu")
    return instance("generator", generator, torch.Generator, "give a torch.Generator").device
