"""Every kind of bad input is met with one sentence that says what, where and what to do, and leaves
nothing behind.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.utils.data import Dataset

from fedmix import (
    BadInput,
    DataError,
    Exchange,
    Federation,
    FedMix,
    GlobalMix,
    Hidden,
    LocalMix,
    NaiveMix,
    Objective,
    Proximal,
    Supervised,
    Training,
    models,
)
from fedmix.data import (
    FederatedData,
    Ragged,
    cifar10,
    cifar100,
    digits,
    femnist,
    from_arrays,
    partition,
    shakespeare,
)
from fedmix.objectives import Needs
from fedmix.training.engines import Vectorised
from tests.synthetic import one_after_another

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
SIZES = (3, 5, 4)
INFINITE, NOT = float("inf"), float("nan")


def arrays(**changed: Any) -> FederatedData:
    """Three clients of 3, 5 and 4 samples with 2 inputs and 3 classes."""
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {
        "x": rng.standard_normal((12, 2)),
        "y": np.arange(12) % 3,
        "clients": one_after_another(SIZES),
        "test": (rng.standard_normal((4, 2)), np.array([0, 1, 2, 0])),
        "classes": 3,
        "name": "mine",
    }
    return from_arrays(**(given | changed))


class Endless(Dataset[int]):
    """What numpy, which asks for samples until there are none, would never be done with."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> int:
        return row


def regression(**changed: Any) -> FederatedData:
    x, y = np.ones((12, 2)), np.ones((12, 1))
    return arrays(**({"x": x, "y": y, "test": (x, y), "classes": None} | changed))


def at(value: float, *where: int) -> Array:
    x = np.zeros((12, 2))
    x[where] = value
    return x


def labelled(value: int, where: int) -> Array:
    y = np.zeros(12, int)
    y[where] = value
    return y


def federation(
    objective: Objective | None = None,
    data: FederatedData | None = None,
    training: Training | None = None,
    **settings: Any,
) -> Federation:
    module = settings.pop("module", None) or nn.Linear(2, 3)
    return Federation(
        module, data or arrays(), objective or Supervised(), training or Training(2), **settings
    )


def run(*arguments: Any, **settings: Any) -> None:
    """Some inputs can only be judged when the clients' means are due: then nothing has been
    trained.
    """
    started = federation(*arguments, **settings)
    before = {n: p.clone() for n, p in started.params.items()}
    try:
        list(started.run(1))
    finally:
        assert started.round == 0
        assert all(bool((p == before[n]).all()) for n, p in started.params.items())


EXCHANGE: list[tuple[str, Call]] = [
    ("exchange.m=0: M_k must be at least 1", lambda: Exchange(m=0)),
    ("exchange.m=-2: M_k must be at least 1", lambda: Exchange(m=-2)),
    (
        "exchange.m=1.5: a fraction of n_k must be below 1; for a number of samples give an "
        "integer",
        lambda: Exchange(m=1.5),
    ),
    ("exchange.m='half': M_k must be at least 1, a fraction", lambda: Exchange(m="half")),  # type: ignore[arg-type]
    ("exchange.m=nan", lambda: Exchange(m=NOT)),
    (
        "exchange.m=4 is more than the 3 samples of client 0; lower it, use 'all', or set "
        "exchange.cutoff=4",
        lambda: run(FedMix(0.1), exchange=Exchange(m=4)),
    ),
    ("exchange.cutoff=0 must be at least 1", lambda: Exchange(cutoff=0)),
    (
        "exchange.cutoff=6 leaves no client to send means: the largest has 5 samples; lower it",
        lambda: run(FedMix(0.1), exchange=Exchange(cutoff=6)),
    ),
    ("exchange.noise=-1 is a deviation and must lie between 0", lambda: Exchange(noise=-1)),
    ("exchange.noise=nan", lambda: Exchange(noise=NOT)),
    ("exchange.noise=inf", lambda: Exchange(noise=INFINITE)),
    ("exchange.average=0 must be at least 1", lambda: Exchange(average=0)),
    (
        "exchange.average=4 is more than the 3 means",
        lambda: run(FedMix(0.1), exchange=Exchange(average=4)),
    ),
    ("exchange.wait=1.5 is a share of clients", lambda: Exchange(wait=1.5)),
    ("exchange.wait=nan", lambda: Exchange(wait=NOT)),
    (
        "exchange.split='label' is unknown; choose one of random, class",
        lambda: Exchange(split="label"),  # type: ignore[arg-type]
    ),
    (
        "exchange.source='me' is unknown; choose one of pool, own, noise",
        lambda: Exchange(source="me"),  # type: ignore[arg-type]
    ),
    (
        "exchange.source='own' .* cannot go with exclude_own",
        lambda: Exchange(source="own", exclude_own=True),
    ),
    (
        "every entry of the pool holds data of client ., so exclude_own leaves it none; use more "
        "clients",
        lambda: run(FedMix(0.1), exchange=Exchange(average=3, exclude_own=True)),
    ),
    (
        "an exchange was given, but this objective uses no means; leave it out, or use FedMix or "
        "NaiveMix",
        lambda: federation(Supervised(), exchange=Exchange()),
    ),
    (
        "exchange.split='class' needs classes, and mine is a regression; use split='random'",
        lambda: federation(
            FedMix(0.1), regression(), exchange=Exchange(split="class"), module=nn.Linear(2, 1)
        ),
    ),
    (
        "exchange.source='noise' .*do not apply to means of hidden states",
        lambda: federation(
            Hidden(FedMix(0.1), 1), exchange=Exchange(source="noise"), module=models.mlp(2, 3)
        ),
    ),
    (
        "exchange.wait do not apply to means of hidden states",
        lambda: federation(
            Hidden(FedMix(0.1), 1), exchange=Exchange(wait=0.5), module=models.mlp(2, 3)
        ),
    ),
]

TRAINING: list[tuple[str, Call]] = [
    (
        "training.clients_per_round=4 is more than the 3 clients of mine",
        lambda: federation(training=Training(4)),
    ),
    ("training.clients_per_round=0 is no number of clients", lambda: Training(0)),
    ("training.clients_per_round=-1 is no number of clients", lambda: Training(-1)),
    ("training.epochs=0 must be at least 1", lambda: Training(1, epochs=0)),
    ("training.epochs=1.5", lambda: Training(1, epochs=1.5)),  # type: ignore[arg-type]
    ("training.batch_size=0 must be at least 1", lambda: Training(1, batch_size=0)),
    ("training.batch_size=2.5", lambda: Training(1, batch_size=2.5)),  # type: ignore[arg-type]
    ("training.clients_per_round=2.5 is no number of clients", lambda: Training(2.5)),
    ("training.lr=0 must be positive", lambda: Training(1, lr=0)),
    ("training.lr=-0.1 must be positive", lambda: Training(1, lr=-0.1)),
    ("training.lr=nan must be positive", lambda: Training(1, lr=NOT)),
    ("training.lr=inf", lambda: Training(1, lr=INFINITE)),
    ("training.lr_decay=0 must be positive", lambda: Training(1, lr_decay=0)),
    ("training.lr_decay=nan must be positive", lambda: Training(1, lr_decay=NOT)),
    ("training.momentum=1 is outside", lambda: Training(1, momentum=1)),
    ("training.momentum=-0.1 is outside", lambda: Training(1, momentum=-0.1)),
    ("training.momentum=nan is outside", lambda: Training(1, momentum=NOT)),
    ("training.weight_decay=-1 must not be negative", lambda: Training(1, weight_decay=-1)),
    ("training.weight_decay=nan must not be negative", lambda: Training(1, weight_decay=NOT)),
    ("evaluate_every=0", lambda: list(federation().run(1, evaluate_every=0))),
    ("seed=-1", lambda: federation(seed=-1)),
]


def by_client(clients: Ragged) -> FederatedData:
    """The arrays, with test rows by client."""
    made = arrays()
    return replace(made, test=replace(made.held_out, clients=clients))


DATA: list[tuple[str, Call]] = [
    (
        "mine: training inputs are of type Endless; give an array or a tensor",
        lambda: arrays(x=Endless()),
    ),
    (
        "mine: training inputs have different lengths; make them alike",
        lambda: arrays(x=[[1.0, 2.0], [3.0]]),
    ),
    (
        "mine: test labels are of type NoneType; give an array",
        lambda: arrays(test=(np.zeros((4, 2)), None)),
    ),
    ("mine: give either `test`, .*, or `test_clients`", lambda: arrays(test=None)),
    ("mine: `clients` is of type int; give the owner of each row", lambda: arrays(clients=3)),
    (
        "mine: training inputs hold NaN or infinity at row 4 .client 1.; clean the data first",
        lambda: arrays(x=at(NOT, 4, 1)),
    ),
    (
        "mine: training inputs hold NaN or infinity at row 9 .client 2.",
        lambda: arrays(x=at(INFINITE, 9)),
    ),
    (
        "mine: training inputs hold NaN or infinity at row 9 .client 2.",
        lambda: arrays(x=at(-INFINITE, 9, 0)),
    ),
    (
        "mine: training inputs hold NaN or infinity at row 11; clean",
        lambda: arrays(x=at(NOT, 11), clients=[[0, 1], [2, 3]]),
    ),
    (
        "mine: test inputs hold NaN or infinity at row 7; clean",
        lambda: arrays(test=(at(NOT, 7), labelled(0, 0))),
    ),
    (
        "mine: training labels hold NaN or infinity at row 3 .client 1.",
        lambda: regression(y=at(NOT, 3)[:, :1]),
    ),
    (
        "mine: training label 3 at row 8 .client 2. is outside 0..2; correct it or raise `classes`",
        lambda: arrays(y=labelled(3, 8)),
    ),
    (
        "mine: training label -1 at row 0 .client 0. is outside 0..2",
        lambda: arrays(y=labelled(-1, 0)),
    ),
    ("mine: test label 5 at row 2 is outside 0..2", lambda: arrays(test=(at(0), labelled(5, 2)))),
    (
        "mine: training labels are float64; with `classes` they must be integers",
        lambda: arrays(y=np.zeros(12)),
    ),
    (
        "mine: training targets have shape .12,.; regression needs .n, d.",
        lambda: regression(y=np.zeros(12)),
    ),
    ("mine: training labels have shape .12, 1.", lambda: arrays(y=labelled(0, 0)[:, None])),
    (
        "mine: training labels cannot be made an array of numbers",
        lambda: regression(y=np.full((12, 1), "yes")),
    ),
    ("mine: training inputs are a single number; give an array", lambda: arrays(x=np.float64(3))),
    (
        "mine: test labels are a single number; give an array",
        lambda: arrays(test=(np.zeros((4, 2)), np.int64(1))),
    ),
    (
        "mine: training inputs are masked in places, and what is masked would be used; clean the "
        "data first",
        lambda: arrays(x=np.ma.masked_less(at(-1, 5), 0)),
    ),
    ("mine: classes=0 must be at least 1, and a whole number", lambda: arrays(classes=0)),
    ("mine: classes=2.5 must be at least 1, and a whole number", lambda: arrays(classes=2.5)),
    ("mine: classes='3' must be at least 1, and a whole number", lambda: arrays(classes="3")),
    (
        "client 1: its rows are lists of different lengths; give one list",
        lambda: arrays(clients=[[0], [[1], [2, 3]]]),
    ),
    (
        "mine: 12 training inputs but 11 labels; give one label per input",
        lambda: arrays(y=np.zeros(11, int)),
    ),
    ("mine: 4 test inputs but 3 labels", lambda: arrays(test=(np.zeros((4, 2)), np.zeros(3, int)))),
    ("mine: .*test", lambda: arrays(test=(np.zeros((0, 2)), np.zeros(0, int)))),
    (
        "mine: test inputs have shape .5,. .*.2,.",
        lambda: arrays(test=(np.zeros((4, 5)), np.zeros(4, int))),
    ),
    ("mine: no clients; give the rows of at least one", lambda: arrays(clients=[])),
    (
        "mine: client 1 has no samples .2 such.; leave empty clients out or use fewer clients",
        lambda: arrays(clients=[[0], [], [1], []]),
    ),
    ("mine: client 1 names a row outside 0..11", lambda: arrays(clients=[[0], [3, 12], [1]])),
    ("mine: client 2 names a row outside 0..11", lambda: arrays(clients=[[0], [1], [-1]])),
    ("mine: client 1 names a row outside 0..11", lambda: arrays(clients=[[0], [3, -1], [1]])),
    ("client 0.*rows", lambda: arrays(clients=[[0.5, 1.5], [2]])),
    ("client 1.*rows", lambda: arrays(clients=[[0], np.arange(12) > 5])),
    (
        "mine: client 1 names a test row outside 0..3",
        lambda: by_client(Ragged.of([[0], [1, 4], [2]])),
    ),
    (
        "mine: test.clients must give every one of the 3 clients",
        lambda: by_client(Ragged.of([[0], [], [2]])),
    ),
    (
        "mine: test.clients must give every one of the 3 clients",
        lambda: by_client(Ragged.of([[0], [1]])),
    ),
    ("mine: there is no client 3; clients are 0..2", lambda: arrays().with_clients({3: [0]})),
    ("mine: client 1 has no samples", lambda: arrays().with_clients({1: []})),
    ("mine: client 0 names a row outside 0..11", lambda: arrays().with_clients({0: [99]})),
    (
        "mine: client 0 names a row outside 0..11",
        lambda: list(federation(changes=lambda _: {0: [99]}).run(1)),
    ),
]

COMBINATIONS: list[tuple[str, Call]] = [
    ("`data` is of type Endless; make a FederatedData of it", lambda: federation(data=Endless())),  # type: ignore[arg-type]
    ("`objective` is the class FedMix; give an Objective, such as", lambda: federation(FedMix)),  # type: ignore[arg-type]
    (
        "`training` is of type dict; give a Training, such as",
        lambda: federation(training={"lr": 1}),  # type: ignore[arg-type]
    ),
    (
        "`loss` is of type CrossEntropyLoss; give a fedmix.core.losses.Loss",
        lambda: federation(loss=nn.CrossEntropyLoss()),
    ),
    (
        "`exchange` is the class Exchange; give an Exchange, such as",
        lambda: federation(exchange=Exchange),
    ),
    (
        "GlobalMix needs raw samples of other clients and mine is private; FedMix and NaiveMix "
        "need means only",
        lambda: federation(GlobalMix(lam=0.5), arrays(private=True)),
    ),
    (
        "GlobalMix needs raw samples",
        lambda: federation(GlobalMix(lam=0.5) + Proximal(0.1), arrays(private=True)),
    ),
    (
        r"`engine` is of type str; give an engine, such as Vectorised\(\) or Sequential\(\)",
        lambda: federation(engine="fast"),
    ),
    (
        "chunk=0: at least one client must run at a time",
        lambda: federation(engine=Vectorised(chunk=0)),
    ),
    ("device", lambda: federation(engine=Vectorised(device="abacus"))),
    (
        "output has shape .2, 4. but the labels .2, 3.; give its last layer 3 outputs",
        lambda: federation(module=nn.Linear(2, 4)),
    ),
    (
        "output has shape .2, 3. but the labels .2, 1.; give its last layer 1 outputs",
        lambda: federation(data=regression()),
    ),
    ("does not take inputs of shape .2, 2.", lambda: federation(module=nn.Linear(3, 3))),
    ("Needs: means='every' is unknown; choose one of batch, sample", lambda: Needs(means="every")),  # type: ignore[arg-type]
    # taken for "global", it would get past `private`
    (
        "Needs: partner='Global' is unknown; did you mean global?",
        lambda: Needs(partner="Global"),  # type: ignore[arg-type]
    ),
    ("FedMix: lam=1.5 is outside", lambda: FedMix(1.5)),
    ("FedMix: lam=nan is outside", lambda: FedMix(NOT)),
    ("NaiveMix: lam=-0.1 is outside", lambda: NaiveMix(-0.1)),
    ("FedMix: scale='literal'", lambda: FedMix(0.1, scale="literal")),  # type: ignore[arg-type]
    ("FedMix: expand='all'", lambda: FedMix(0.1, expand="all")),  # type: ignore[arg-type]
    ("FedMix: per='client'", lambda: FedMix(0.1, per="client")),  # type: ignore[arg-type]
    ("NaiveMix: per='client'", lambda: NaiveMix(0.1, per="client")),  # type: ignore[arg-type]
    ("LocalMix: give either alpha .* or a fixed lam", lambda: LocalMix()),
    ("LocalMix: alpha=0 must be positive", lambda: LocalMix(alpha=0)),
    ("Proximal: mu=-1 is negative; use 0 or more", lambda: Proximal(-1)),
    ("Hidden: layer=0; hidden states exist after layer 1", lambda: Hidden(FedMix(0.1), 0)),
]

LABELS = np.repeat(np.arange(3), 4)
PARTITIONS: list[tuple[str, Call]] = [
    (
        "11 classes per client, but the data has 10; use 1..10",
        lambda: digits(classes_per_client=11),
    ),
    ("2000 clients for 1438 samples; use 1..1438 clients", lambda: digits(2000)),
    (
        "4 clients with 2 classes each cannot hold all 10 classes; use at least 5 clients",
        lambda: digits(4),
    ),
    (
        "cannot be cut into .* shards; use fewer clients or fewer classes per client",
        lambda: digits(400, classes_per_client=5),
    ),
    (
        "alpha 1e-06 left one of 12 clients with fewer than 1 samples in .* draws; use a larger "
        "alpha, fewer clients",
        lambda: partition.dirichlet(LABELS, 12, 1e-6, np.random.default_rng(0)),
    ),
    (
        "no partition 'shard'; use one of classes, random-classes, shards, dirichlet, iid",
        lambda: digits(partition="shard"),  # type: ignore[arg-type]
    ),
    ("partition 'dirichlet' needs `alpha`, such as 0.5", lambda: digits(partition="dirichlet")),
    (
        "partition 'iid' does not use `alpha`; leave it out",
        lambda: cifar10(partition="iid", alpha=0.5, root="nowhere"),
    ),
    ("no normalisation 'foo'", lambda: cifar100(normalise="foo", root="nowhere")),  # type: ignore[arg-type]
    ("no normalisation 'foo'", lambda: femnist(normalise="foo", root="nowhere")),  # type: ignore[arg-type]
    ("data.clients=0 must be at least 1", lambda: cifar10(0, root="nowhere")),
    ("data.test_share=1 must lie between 0 and 1", lambda: digits(test_share=1)),
]

ALL = EXCHANGE + TRAINING + DATA + COMBINATIONS + PARTITIONS


@pytest.fixture(autouse=True)
def nothing_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every folder that could be written to is here, and is empty afterwards."""
    monkeypatch.chdir(tmp_path)
    for name in ("FEDMIX_CACHE", "HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("FEDMIX_DATA", raising=False)
    yield
    assert list(tmp_path.iterdir()) == []


def check(caught: BadInput) -> None:
    """One sentence: one line, not a stack of them, with no full stop inside, and the exit code of
    bad input.
    """
    said = str(caught)
    assert caught.exit_code == 2
    assert "\n" not in said
    assert not re.search(r"\.\s+[A-Z]", said)
    assert len(said) < 300


@pytest.mark.parametrize(
    ("words", "call"), ALL, ids=[f"{i:03}-{words[:50]}" for i, (words, _) in enumerate(ALL)]
)
def test_bad_input_says_what_where_and_what_to_do(words: str, call: Call) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        call()
    check(caught.value)


@pytest.mark.parametrize(
    ("load", "folder"),
    [
        (cifar10, "uoft-cs/cifar10/plain_text/train"),
        (cifar100, "uoft-cs/cifar100/cifar100/train"),
        (femnist, "flwrlabs/femnist/default/train"),
        (shakespeare, "flwrlabs/shakespeare/default/train"),
    ],
)
@pytest.mark.parametrize("named", ["argument", "environment"])
def test_missing_files_say_how_to_get_them(
    load: Any, folder: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "mirror"
    monkeypatch.setenv("FEDMIX_DATA", str(root) if named == "environment" else "")
    with pytest.raises(DataError) as caught:
        load(root=root) if named == "argument" else load()
    said = str(caught.value)
    assert f"there are no parquet files in {root / folder}; put them there, or " in said
    assert ("leave out --data (`root`" if named == "argument" else "unset FEDMIX_DATA") in said
    check(caught.value)


def test_good_input_of_the_same_shape_is_taken() -> None:
    """What the refusals above are varied from does work."""
    assert next(federation(FedMix(0.1), exchange=Exchange(m=3, split="class")).run(1)).round == 1
    assert next(federation(data=regression(), module=nn.Linear(2, 1)).run(1)).round == 1
    assert next(federation(GlobalMix(lam=0.5)).run(1)).round == 1
