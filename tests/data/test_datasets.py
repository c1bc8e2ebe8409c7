"""Every reader on small copies of its dataset; what is expected is read from the tables, without
the code under test.
"""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fedmix.core.errors import BadInput
from fedmix.data import (
    FederatedData,
    Ragged,
    cifar10,
    cifar100,
    diabetes,
    digits,
    femnist,
    shakespeare,
)
from fedmix.data.shakespeare import LETTERS, encode
from fedmix.data.transforms import Images, OneHot
from tests.miniature import write_mirror

Array = np.ndarray[Any, Any]
Folders = dict[str, Any]  # the settings `root` and `cache`


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    base = tmp_path_factory.mktemp("data")
    return {"root": write_mirror(base / "mirror"), "cache": base / "cache"}


def rows_of(folders: Folders, place: str) -> list[dict[str, Any]]:
    files = sorted((folders["root"] / place).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def picture(cell: dict[str, Any]) -> Array:
    return np.asarray(Image.open(io.BytesIO(cell["bytes"])))


def classes_held(data: FederatedData) -> list[int]:
    return [len(np.unique(data.y[data.clients[k]])) for k in range(len(data.clients))]


def as_sets(rows: Ragged) -> list[set[int]]:
    return [set(rows[k].tolist()) for k in range(len(rows))]


def test_cifar10(folders: Folders) -> None:
    data = cifar10(12, **folders)
    for x, y, split in ((data.x, data.y, "train"), (data.held_out.x, data.held_out.y, "test")):
        table = rows_of(folders, f"uoft-cs/cifar10/plain_text/{split}")
        assert y.tolist() == [row["label"] for row in table]
        assert x.dtype == np.uint8
        assert all((x[i] == picture(row["img"])).all() for i, row in enumerate(table))
    assert data.input_shape == (3, 32, 32)
    assert data.outputs == 10
    assert sorted(data.clients.flat.tolist()) == list(range(600))
    assert classes_held(data) == [2] * 12
    assert isinstance(data.transform, Images)
    assert data.transform.pad == 4
    assert data.held_out.clients is None


def test_cifar10_normalisation(folders: Folders) -> None:
    """(pixel/255 - mean) / std per channel, or pixel/255 alone."""
    standard, unit = cifar10(12, **folders), cifar10(12, normalise="unit", augment=False, **folders)
    pixel = standard.x[5, 3, 4].astype(np.float64) / 255
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    np.testing.assert_allclose(
        standard.inputs(standard.x[5:6])[0, :, 3, 4].numpy(), (pixel - mean) / std, atol=1e-6
    )
    np.testing.assert_allclose(unit.inputs(unit.x[5:6])[0, :, 3, 4].numpy(), pixel, atol=1e-7)
    assert unit.transform.pad == 0
    with pytest.raises(BadInput, match="no normalisation 'zero'"):
        cifar10(12, normalise="zero", **folders)  # type: ignore[arg-type]


def test_cifar10_with_constant_samples_per_client(folders: Folders) -> None:
    """5 clients x 20 and 10 x 20: of 10 classes with 60 images each, 10 and 20 images are used."""
    for clients in (5, 10):
        data = cifar10(clients, samples_per_client=20, **folders)
        assert data.clients.sizes.sum() == 20 * clients
        assert len(set(data.clients.flat.tolist())) == 20 * clients
        assert np.bincount(data.y[data.clients.flat]).tolist() == [2 * clients] * 10
        assert classes_held(data) == [2] * clients
    with pytest.raises(BadInput, match="cannot take 610 of 600 samples"):
        cifar10(10, samples_per_client=61, **folders)


def test_cifar10_with_a_part_of_the_local_data(folders: Folders) -> None:
    whole, half, fifth = (
        as_sets(cifar10(10, local_share=s, **folders).clients) for s in (1.0, 0.5, 0.2)
    )
    for a, b, c in zip(whole, half, fifth, strict=True):
        assert (len(a), len(b), len(c)) == (60, 30, 12)
        assert c < b < a


@pytest.mark.parametrize(
    ("partition", "alpha"),
    [
        ("classes", None),
        ("random-classes", None),
        ("shards", None),
        ("dirichlet", 0.5),
        ("iid", None),
    ],
)
def test_cifar10_partitions_are_the_seeds(
    folders: Folders, partition: str, alpha: float | None
) -> None:
    setting: dict[str, Any] = {
        "partition": partition,
        "alpha": alpha,
        "classes_per_client": 3,
        **folders,
    }
    one, two, other = (as_sets(cifar10(12, seed=s, **setting).clients) for s in (1, 1, 2))
    assert one == two
    assert one != other
    assert set.union(*one) == set(range(600))


def test_cifar100(folders: Folders) -> None:
    data = cifar100(20, classes_per_client=20, **folders)
    table = rows_of(folders, "uoft-cs/cifar100/cifar100/train")
    assert data.y.tolist() == [row["fine_label"] for row in table]
    assert (data.x[7] == picture(table[7]["img"])).all()
    assert data.outputs == 100
    assert classes_held(data) == [20] * 20
    assert data.held_out.x.shape == (200, 32, 32, 3)


def test_femnist(folders: Folders) -> None:
    """Every image is recognised by its pixels, so whose it is and where it went is known from the
    table.
    """
    table = rows_of(folders, "flwrlabs/femnist/default/train")
    known = {picture(row["image"]).tobytes(): (row["writer_id"], row["character"]) for row in table}
    assert len(known) == len(table)
    data = femnist(10, **folders)
    assert data.held_out.clients is not None
    writers, seen = [], []
    for k in range(10):
        mine = [
            (known[x[i].tobytes()], int(y[i]), x[i].tobytes())
            for x, y, rows in (
                (data.x, data.y, data.clients),
                (data.held_out.x, data.held_out.y, data.held_out.clients),
            )
            for i in rows[k]
        ]
        (writer,) = {owner for (owner, _), _, _ in mine}
        assert all(character == y for (_, character), y, _ in mine)
        size = sum(row["writer_id"] == writer for row in table)
        assert len(mine) == size
        assert len(data.held_out.clients[k]) == max(1, round(size / 10))
        writers.append(writer)
        seen += [pixels for _, _, pixels in mine]
    assert len(set(writers)) == 10
    assert len(set(seen)) == len(seen) == len(data.x) + len(data.held_out.x)


def test_femnist_settings(folders: Folders) -> None:
    data = femnist(12, **folders)
    assert (data.outputs, data.input_shape) == (62, (1, 28, 28))
    assert data.transform == Images((0.0384,), (0.1639,), pad=0, invert=True)
    ink = femnist(12, normalise="unit", **folders).inputs(data.x[:1])[0, 0]
    np.testing.assert_allclose(ink.numpy(), 1 - data.x[0, :, :, 0] / 255, atol=1e-6)
    fifth = femnist(12, local_share=0.2, **folders)
    assert fifth.clients.sizes.tolist() == [round(0.2 * n) for n in data.clients.sizes]
    assert len(fifth.held_out.x) == len(data.held_out.x)
    # 25 to 39 images with 10 % held out: only writers with 36 or more have 32 left.
    sizes = [25 + w * 14 // 11 for w in range(12)]
    enough = sum(n - max(1, round(n / 10)) >= 32 for n in sizes)
    assert femnist(enough, least=32, **folders).clients.sizes.min() >= 32
    with pytest.raises(BadInput, match=f"{enough + 1} clients, but {enough} of 12 have enough"):
        femnist(enough + 1, least=32, **folders)
    for bad in (
        {"test_share": 0.0},
        {"test_share": 1.0},
        {"least": 0},
        {"clients": 0},
        {"clients": 13},
    ):
        with pytest.raises(BadInput, match=next(iter(bad))):
            femnist(**{"clients": 3, **bad, **folders})


def test_femnist_holds_out_the_same_whoever_else_takes_part(folders: Folders) -> None:
    def held(clients: int) -> set[bytes]:
        return {image.tobytes() for image in femnist(clients, seed=3, **folders).held_out.x}

    assert held(4) <= held(12)


def roles(folders: Folders) -> dict[str, list[tuple[str, str]]]:
    """The windows of each role, in order."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in rows_of(folders, "flwrlabs/shakespeare/default/train"):
        found.setdefault(row["character_id"], []).append((row["x"], row["y"]))
    return found


def windows(x: Array, y: Array, rows: Array) -> list[tuple[str, str]]:
    return [("".join(LETTERS[c] for c in x[i]), LETTERS[y[i]]) for i in rows]


def test_shakespeare(folders: Folders) -> None:
    """Client k is the k-th role by name; its windows are the text's, without 79 between training
    and test.
    """
    data = shakespeare(8, **folders)
    assert data.held_out.clients is not None
    table = roles(folders)
    for k, role in enumerate(sorted(table)):
        train = windows(data.x, data.y, data.clients[k])
        test = windows(data.held_out.x, data.held_out.y, data.held_out.clients[k])
        assert train == table[role][: len(train)]
        assert test == table[role][len(train) + 79 :]
        assert abs(len(train) - 0.8 * (len(table[role]) - 79)) <= 0.5
        # The text is the first window and then the last letter of each: no letter is read on both
        # sides.
        text = table[role][0][0] + "".join(y for _, y in table[role])
        last, first = len(train) - 1, len(train) + 79
        assert text[last : last + 80] == train[-1][0]
        assert text[first : first + 80] == test[0][0]
        assert last + 80 == first
    assert len(data.x) == data.clients.sizes.sum()


def test_shakespeare_settings(folders: Folders) -> None:
    data = shakespeare(3, least=440, cap=179, **folders)
    assert data.clients.sizes.tolist() == [80] * 3  # 0.8 · (179 - 79)
    assert data.held_out.clients is not None
    assert data.held_out.clients.sizes.tolist() == [20] * 3
    assert (data.outputs, data.input_shape, data.transform) == (84, (80, 84), OneHot(84))
    assert data.x.max() < 81
    with pytest.raises(BadInput, match="4 clients, but 3 of 8 have enough samples"):
        shakespeare(4, least=440, **folders)
    for bad in ({"train_share": 1.0}, {"least": 80}, {"cap": 80}, {"clients": 0}):
        with pytest.raises(BadInput, match=next(iter(bad))):
            shakespeare(**{"clients": 3, **bad, **folders})
    smallest = shakespeare(1, least=81, cap=81, **folders)
    assert (len(smallest.x), len(smallest.held_out.x)) == (1, 1)


def test_shakespeares_letters() -> None:
    """LEAF's 80 letters."""
    assert len(set(LETTERS)) == 80
    assert encode(LETTERS).tolist() == list(range(80))
    assert encode("é\x7f\u2014\U0001f600~").tolist() == [80] * 5


def test_digits() -> None:
    data = digits(10, seed=4)
    source = load_digits()
    grey = {
        tuple(np.rint(i * 255 / 16).ravel()): t
        for i, t in zip(source.images, source.target, strict=True)
    }
    for x, y in ((data.x, data.y), (data.held_out.x, data.held_out.y)):
        assert all(grey[tuple(image.ravel())] == label for image, label in zip(x, y, strict=True))
    assert len(data.x) + len(data.held_out.x) == 1797
    assert len(data.held_out.x) == 359  # 0.2 · 1797 = 359.4
    counts = np.bincount(source.target)
    assert (abs(np.bincount(data.held_out.y) - counts * 359 / 1797) < 1).all()
    assert classes_held(data) == [2] * 10
    pixels = data.inputs(np.concatenate([data.x, data.held_out.x]))
    assert abs(float(pixels.mean())) < 1e-3
    assert float(pixels.std()) == pytest.approx(1, abs=1e-3)
    assert digits(5, partition="dirichlet", alpha=1.0).clients.sizes.sum() == 1438
    assert digits(5, partition="iid", local_share=0.5).clients.sizes.tolist() == [
        144,
        144,
        144,
        144,
        144,
    ]
    with pytest.raises(BadInput, match="test_share"):
        digits(test_share=0)


def test_diabetes() -> None:
    data = diabetes(8, seed=2)
    assert data.held_out.clients is not None
    assert (data.x.shape, data.y.shape, data.held_out.x.shape) == (
        (354, 10),
        (354, 1),
        (88, 10),
    )  # 0.2 · 442 = 88.4
    np.testing.assert_allclose(data.x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(data.x.std(axis=0), 1, atol=1e-5)
    np.testing.assert_allclose([data.y.mean(), data.y.std()], [0, 1], atol=1e-5)
    sizes = data.clients.sizes + data.held_out.clients.sizes
    assert set(sizes.tolist()) == {55, 56}  # 442 = 6·55 + 2·56
    oldest = -np.inf
    for k in range(8):
        group = np.concatenate(
            [data.x[data.clients[k], 0], data.held_out.x[data.held_out.clients[k], 0]]
        )
        assert group.min() >= oldest
        oldest = group.max()
    for clients in (0, 89):
        with pytest.raises(BadInput, match=r"use 1..88"):
            diabetes(clients)
    assert diabetes(88).clients.sizes.min() >= 1


def test_importing_the_package_needs_torch_and_numpy_only() -> None:
    code = (
        "import sys, fedmix.data; "
        "heavy = {'pyarrow', 'PIL', 'huggingface_hub', 'sklearn'} & set(sys.modules); assert not "
        "heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ["pyarrow", "PIL", "huggingface_hub", "sklearn"])
def test_what_is_missing_says_how_to_get_it(
    module: str, tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delenv("FEDMIX_DATA", raising=False)
    root = None if module == "huggingface_hub" else folders["root"]
    with pytest.raises(BadInput, match=r"pip install 'fedmix\[data\]'"):
        digits() if module == "sklearn" else cifar10(root=root, cache=tmp_path)
