"""Arrays of every kind that people pass: they train as a plain loop over the same numbers does, or
are refused in a sentence.
"""

import re
import warnings
from collections import UserList
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

from fedmix import BadInput, Federation, FedmixWarning, Supervised, Training, data
from fedmix.data import FederatedData, HeldOut, Ragged, alone, from_arrays, partition
from fedmix.data.transforms import Images, OneHot, Plain, Transform
from fedmix.models import initialised

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)
X = rng.integers(-3, 4, (12, 2)).astype(np.float32)  # numbers that every type holds
Y = np.arange(12) % 3
ROWS = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11]]
MAKERS: list[Callable[..., FederatedData]] = [
    lambda x, y, test, **more: from_arrays(x, y, ROWS, test, classes=3, **more),
    lambda x, y, test, **more: FederatedData(x, y, Ragged.of(ROWS), HeldOut(*test), 3, **more),
]
BOTH = pytest.mark.parametrize("make", MAKERS, ids=["from_arrays", "FederatedData"])


def step(made: FederatedData) -> list[Any]:
    """The weights after a round in which each client takes one step on all it has."""
    net = initialised(lambda: nn.Linear(2, 3), 0)
    run = Federation(net, made, Supervised(), Training(2, batch_size=10, lr=0.1))
    [done] = run.run(1)
    assert done.metrics is not None
    return [p.tolist() for p in run.params.values()] + [done.metrics["loss"]]


def by_hand() -> list[Any]:
    """The same in plain PyTorch: one step each, then the average weighted by samples."""
    total, counts = [torch.zeros(3, 2), torch.zeros(3)], [len(r) for r in ROWS]
    for rows, n in zip(ROWS, counts, strict=True):
        net = initialised(lambda: nn.Linear(2, 3), 0)
        loss = nn.functional.cross_entropy(net(torch.tensor(X[rows])), torch.tensor(Y[rows]))
        grads = torch.autograd.grad(loss, list(net.parameters()))
        for into, p, g in zip(total, net.parameters(), grads, strict=True):
            into += n / sum(counts) * (p - 0.1 * g).detach()
    tested = nn.functional.cross_entropy(torch.tensor(X) @ total[0].T + total[1], torch.tensor(Y))
    return [t.tolist() for t in total] + [float(tested)]


def mapped(values: Array, folder: Path, kind: str) -> Array:
    np.save(folder / "mapped.npy", values.astype(kind))
    loaded: Array = np.load(folder / "mapped.npy", mmap_mode="r")
    return loaded


class Frame:
    """As pandas and others show their columns to numpy."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self.values, dtype)

    def __len__(self) -> int:
        return len(self.values)


INPUTS: dict[str, Callable[[Path], Any]] = {
    "float16": lambda _: X.astype(np.float16),
    "float64": lambda _: X.astype(np.float64),
    "longdouble": lambda _: X.astype(np.longdouble),
    "big-endian float32": lambda _: X.astype(">f4"),
    "reversed": lambda _: X[::-1, ::-1].copy()[::-1, ::-1],
    "read-only": lambda _: np.broadcast_to(X, X.shape),
    "mapped": lambda folder: mapped(X, folder, "<f4"),
    "mapped big-endian": lambda folder: mapped(X, folder, ">f8"),
    "matrix columns": lambda _: np.asfortranarray(X),
    "tensor": lambda _: torch.tensor(X),
    "tensor of doubles": lambda _: torch.tensor(X, dtype=torch.float64),
    "tensor of bfloat16": lambda _: torch.tensor(X, dtype=torch.bfloat16),
    "features of a model": lambda _: torch.tensor(X, requires_grad=True) * 1,
    "list of features": lambda _: [torch.tensor(x, requires_grad=True) for x in X],
    "list": lambda _: X.tolist(),
    "list of arrays": lambda _: list(X),
    "tuple of tensors": lambda _: tuple(torch.tensor(X)),
    "frame": lambda _: Frame(X),
    "column": lambda _: UserList(X.tolist()),
    "masked nowhere": lambda _: np.ma.array(X),
}
LABELS: dict[str, Any] = {
    **{kind: Y.astype(kind) for kind in ("u1", "u2", "u4", "u8", "i1", "i4", ">i4", ">u2", ">u8")},
    "list": Y.tolist(), "tensor": torch.tensor(Y), "frame": Frame(Y),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_train_as_a_plain_loop_does(
    kind: str, make: Callable[..., FederatedData], tmp_path: Path
) -> None:
    x = INPUTS[kind](tmp_path)
    for ours, theirs in zip(step(make(x, Y, (x, Y))), by_hand(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@BOTH
@pytest.mark.parametrize("kind", LABELS)
def test_labels_train_as_a_plain_loop_does(kind: str, make: Callable[..., FederatedData]) -> None:
    for ours, theirs in zip(step(make(X, LABELS[kind], (X, LABELS[kind]))), by_hand(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("kind", ["?", "u1", "u2", ">u4", "u8"])
def test_unsigned_inputs_and_flags_are_what_they_are(kind: str) -> None:
    x = np.array([[0, 1], [1, 1]] * 6, kind)
    for make in MAKERS:
        assert make(x, Y, (x, Y)).inputs(make(x, Y, (x, Y)).x).tolist() == [[0, 1], [1, 1]] * 6
    if kind == "u8":
        x[0, 0] = 2**63
        assert MAKERS[1](x, Y, (x, Y)).inputs(MAKERS[1](x, Y, (x, Y)).x)[0].tolist() == [2.0**63, 1]


STRUCTURED = np.zeros(12, [("a", "f4"), ("b", "f4")])
REFUSED: dict[str, tuple[Any, str]] = {
    "dates": (X.astype("M8[D]"), "cannot be made an array of numbers .they are datetime64"),
    "durations": (X.astype("m8[s]"), "cannot be made an array of numbers .they are timedelta64"),
    "complex": (X.astype(complex), "cannot be made an array of numbers .they are complex128"),
    "objects": (X.astype(object),
        "cannot be made an array of numbers .they are object.; turn them into integers or floats"),
    "text": (X.astype(str), "cannot be made an array of numbers .they are text"),
    "records": (STRUCTURED, "cannot be made an array of numbers .they are void"),
    "missing": ([[None, 1.0]] * 12, "cannot be made an array of numbers .they are object"),
    "sparse tensor": (torch.tensor(X).to_sparse(), "cannot be made an array of numbers"),
    "sparse matrix": (scipy.sparse.csr_matrix(X),
        "are of type csr_matrix; give an array or a tensor"),
    "generator": ((row for row in X), "are of type generator; give an array or a tensor"),
    "dict": ({"a": X}, "are of type dict; give an array"),
    "unequal lengths": ([[1.0, 2.0], [1.0]] * 6, "have different lengths; make them alike"),
    "nothing in them": (X[:, :0], "have shape .12, 0., with nothing for a sample"),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("part", ["training", "test"])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_are_no_numbers_is_refused(
    kind: str, part: str, make: Callable[..., FederatedData]
) -> None:
    wrong, said = REFUSED[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadInput, match=f"mine: {part} inputs {said}"):
            make(
                wrong if part == "training" else X,
                Y,
                (wrong if part == "test" else X, Y),
                name="mine",
            )
        if kind in ("dates", "durations", "complex", "objects", "text"):
            labels = wrong[:, 0]
            with pytest.raises(BadInput, match=f"mine: {part} labels {said}"):
                make(
                    X,
                    labels if part == "training" else Y,
                    (X, labels if part == "test" else Y),
                    name="mine",
                )


@pytest.mark.parametrize("kind", [np.float64, np.longdouble])
def test_numbers_beyond_float32_are_refused(kind: Any) -> None:
    """They would become infinity; what float32 holds is taken, with a warning of its size."""
    x = X.astype(kind)
    x[7, 1] = 1e39
    with pytest.raises(
        BadInput, match="training inputs hold numbers beyond float32; scale the data first"
    ):
        MAKERS[0](x, Y, (X, Y))
    with pytest.raises(
        BadInput,
        match=re.escape("training inputs hold numbers beyond float32 at row 7 (client 1); scale"),
    ):
        MAKERS[1](x, Y, (X, Y))
    assert MAKERS[1](x / 10, Y, (X, Y)).inputs(x[7:8].astype(float) / 10).isfinite().all()


@BOTH
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinity_is_refused_in_every_type(
    kind: Any, value: float, make: Callable[..., FederatedData]
) -> None:
    x = X.astype(kind)
    x[7, 1] = value
    with pytest.raises(
        BadInput, match=re.escape("training inputs hold NaN or infinity at row 7 (client 1); clean")
    ):
        make(x, Y, (X, Y))


# Codes and pixels


@pytest.mark.parametrize("part", ["training", "test"])
@pytest.mark.parametrize("code", [4, -1, 200])
def test_a_code_that_has_no_place_is_refused(code: int, part: str) -> None:
    """It would be a row of zeros, on which any model trains."""
    good, bad = np.zeros((12, 5), int), np.zeros((12, 5), int)
    bad[7, 3] = code
    x, test = (bad, good) if part == "training" else (good, bad)
    where = "row 7 (client 1)" if part == "training" else "row 7"
    said = f"{part} inputs hold {code} at {where}; OneHot(4) takes codes in 0..3"
    with pytest.raises(BadInput, match=re.escape(said)):
        MAKERS[1](x, Y, (test, Y), transform=OneHot(4))
    with pytest.raises(
        BadInput, match=r"training inputs are float64; OneHot\(4\) takes codes in 0..3, as integers"
    ):
        MAKERS[1](good + 0.5, Y, (good, Y), transform=OneHot(4))
    bad[7, 3] = 3
    assert MAKERS[1](bad.astype(">u2"), Y, (good, Y), transform=OneHot(4)).inputs(bad).sum() == 60


def test_pixels_that_are_no_bytes_are_refused() -> None:
    pixels = np.full((12, 4, 4, 3), 128, np.uint8)
    grey, colour = Images((0.5,), (0.25,)), Images((0.5,) * 3, (0.25,) * 3)
    assert MAKERS[1](pixels, Y, (pixels, Y), transform=colour).input_shape == (3, 4, 4)
    assert MAKERS[1](pixels.astype(float), Y, (pixels, Y), transform=colour).input_shape == (
        3,
        4,
        4,
    )
    for wrong, how, said in (
        (pixels, grey, r"have shape \(12, 4, 4, 3\); these Images are \(n, height, width, 1\)"),
        (
            np.moveaxis(pixels, -1, 1),
            colour,
            r"have shape \(12, 3, 4, 4\); these Images are \(n, height, width, 3\)",
        ),
        (pixels[..., 0], grey, r"have shape \(12, 4, 4\)"),
        (pixels / 255, colour, r"end at 0.502; Images takes pixels in 0..255"),
    ):
        with pytest.raises(BadInput, match=f"training inputs {said}"):
            MAKERS[1](wrong, Y, (wrong, Y), transform=how)


# Targets and clients


def test_targets_of_another_width_are_refused() -> None:
    """(12, 1) against (12, 3) would be broadcast to a wrong score."""
    for width in (1, 2):
        with pytest.raises(
            BadInput,
            match=rf"test targets have shape \({width},\) but training targets \(3,\); make them "
            r"alike",
        ):
            from_arrays(X, np.zeros((12, 3)), ROWS, (X, np.zeros((12, width))))


def test_clients_in_other_forms() -> None:
    """The result of a partition is taken as it is; what is no list of row numbers is refused."""
    dealt = partition.iid(12, 3, np.random.default_rng(0))
    made = from_arrays(X, Y, dealt, (X, Y), classes=3)
    assert [made.clients[k].tolist() for k in range(3)] == [dealt[k].tolist() for k in range(3)]
    assert len(from_arrays(X, Y, (rows for rows in ROWS), (X, Y), classes=3).clients) == 2
    wrongs: list[tuple[Any, str]] = [
        ("0,1", "`clients` is of type str; give the owner of each row, or the row"),
        (3, "`clients` is of type int; give the owner"),
        ([X[:, 0] > 0], "client 0: its rows are bool"),
    ]
    for wrong, said in wrongs:
        with pytest.raises(BadInput, match=said):
            from_arrays(X, Y, wrong, (X, Y), classes=3)
    with pytest.raises(BadInput, match="`clients` is of type list; make a Ragged"):
        FederatedData(X, Y, ROWS, HeldOut(X, Y), 3)  # type: ignore[arg-type]
    for changed, said in (
        ({"0": [1]}, "there is no client '0'"),
        ({True: [1]}, "there is no client True"),
        ([0], "`changes` is of"),
    ):
        with pytest.raises(BadInput, match=said):
            made.with_clients(changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rows",
    [
        Ragged(np.arange(4), np.array([0, 9])),
        Ragged(np.arange(4), np.array([1, 4])),
        Ragged(np.arange(4), np.array([0, 3, 2, 4])),
        Ragged([0, 1, 2], [0, 3.0]),  # type: ignore[arg-type]
        Ragged(np.arange(4) + 0.5, np.array([0, 4])),
        Ragged(np.arange(4, dtype=np.uint16), np.array([0, 4])),
        Ragged(np.arange(4, dtype=">i8"), np.array([0, 4])),
    ],
    ids=["beyond", "from 1", "falling", "lists", "fractions", "unsigned", "big-endian"],
)
def test_rows_by_client_that_cannot_be_are_refused(rows: Ragged) -> None:
    wrongs: list[tuple[str, dict[str, Any]]] = [
        ("rows", {"clients": rows}),
        ("test rows", {"test": HeldOut(X, Y, rows)}),
    ]
    for part, wrong in wrongs:
        with pytest.raises(
            BadInput,
            match=f"the {part} of clients are no int64 rows with rising offsets; make them by "
            "Ragged.of",
        ):
            replace(MAKERS[0](X, Y, (X, Y)), **wrong)


def test_only_images_are_cropped() -> None:
    for how, x in (
        (Plain(pad=2), X),
        (OneHot(4, pad=1), np.zeros((12, 2), int)),
        (Images((0.5,), (0.2,), pad=1), X),
    ):
        with pytest.raises(
            BadInput,
            match=r"training inputs have shape \(12, 2\); a transform's `pad` is for images",
        ):
            MAKERS[1](x, Y, (x, Y), transform=how)


def test_labels_are_dealt_out_in_any_form_of_one_each() -> None:
    for deal in (partition.by_classes, partition.shards):
        assert deal(Y.tolist(), 3, 2, np.random.default_rng(0)).sizes.tolist() == [4, 4, 4]  # type: ignore[arg-type]
        with pytest.raises(
            BadInput, match=r"labels have shape \(12, 3\); give one label for each sample"
        ):
            deal(np.eye(3)[Y], 3, 2, np.random.default_rng(0))
    with pytest.raises(BadInput, match="labels have shape"):
        partition.dirichlet(np.eye(3)[Y], 3, 1.0, np.random.default_rng(0))
    with pytest.raises(BadInput, match="labels have shape"):
        partition.subset(np.eye(3)[Y], 3, np.random.default_rng(0))


def test_a_party_that_is_alone_is_not_called_client_0() -> None:
    """It may be any client of its federation."""
    x = X.copy()
    x[4] = np.nan
    for x_, y in ((x, Y), (X, Y + 11)):
        with pytest.raises(BadInput, match="own: training ") as caught:
            alone(x_, y, classes=3)
        assert "client" not in str(caught.value)


# The size of inputs


@dataclass(frozen=True)
class Doubled(Plain):
    """A transform that makes inputs larger."""

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def federation(
    x: Array, transform: Transform | None = None, module: nn.Module | None = None
) -> Federation:
    made = FederatedData(
        x,
        np.arange(len(x)) % 3,
        Ragged.of([range(len(x))]),
        HeldOut(x, np.arange(len(x)) % 3),
        3,
        transform or Plain(),
    )
    net = module or nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(made.input_shape)), 3))
    return Federation(net, made, Supervised(), Training(1))


NORMAL = np.random.default_rng(1).standard_normal((300, 5)).astype(np.float32)
BYTES = np.random.default_rng(1).integers(0, 256, (300, 4, 4, 1)).astype(np.uint8)
INK = np.where(
    np.random.default_rng(2).random((300, 4, 4, 1)) < 0.8, 0, BYTES
)  # four fifths are paper


@pytest.mark.parametrize(
    ("x", "transform", "said"),
    [
        (
            NORMAL + 300,
            None,
            r"arrays: inputs lie in \[29\d, 30\d\], far from the size of about 1 .*standardise",
        ),
        (NORMAL * 300, None, r"inputs lie in \[-"),
        (BYTES.astype(float), None, r"inputs lie in \[0, 255\], .*or make bytes Images"),
        (INK.astype(float), None, r"inputs lie in \[0, 255\]"),
        (NORMAL * [1, 1, 1, 50, 1], None, "inputs lie in"),
        (NORMAL + 15, Doubled(), "inputs lie in"),
        (NORMAL * 1e30, None, "inputs lie in"),
    ],
    ids=["mean 300", "deviation 300", "bytes", "ink", "one feature", "after the transform", "huge"],
)
def test_inputs_far_from_1_are_warned_of(x: Array, transform: Transform | None, said: str) -> None:
    with pytest.warns(FedmixWarning, match=said) as caught:
        federation(x, transform)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_other_inputs_are_not_warned_of() -> None:
    """Standardised, whatever their tails; in [0, 1]; sixteen grey levels; one-hot; and codes of an
    embedding.
    """
    heavy = np.random.default_rng(3).standard_cauchy((300, 5)).astype(np.float32)
    outlier = NORMAL.copy()
    outlier[::100] = 1e4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (
            NORMAL,
            heavy,
            outlier,
            BYTES / 255,
            BYTES // 16 / 1.0,
            NORMAL[:1],
            np.zeros((4, 3)),
            NORMAL * 1e-6,
        ):
            federation(x)
        federation(BYTES, Images((0.5,), (0.25,)))
        federation(BYTES[..., 0, 0] % 50, OneHot(50))
        federation(
            BYTES[:, 0, 0].astype(int), module=nn.Sequential(Codes(), nn.Flatten(), nn.Linear(2, 3))
        )
        for built_in in (data.digits(), data.diabetes()):
            net = nn.Sequential(
                nn.Flatten(), nn.Linear(int(np.prod(built_in.input_shape)), built_in.outputs)
            )
            Federation(net, built_in, Supervised(), Training(1))


class Codes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        looked: torch.Tensor = self.table(x.long())
        return looked
