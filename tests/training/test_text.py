"""Token ids: integers that stay integers, and are mixed where that means something."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import (
    BadInput,
    Federation,
    FedMix,
    GlobalMix,
    Hidden,
    LocalMix,
    NaiveMix,
    Objective,
    Supervised,
    Training,
)
from fedmix.core.types import Params
from fedmix.data import FederatedData, from_arrays
from fedmix.data.transforms import OneHot
from fedmix.training.engines import Engine, Sequential, Vectorised
from tests.synthetic import ENGINES, NAMES

WORDS, LENGTH = 7, 5
TRAINING = Training(2, batch_size=4, lr=0.2)
EVERY: list[Engine] = [*ENGINES, Vectorised(compile=True)]


class Net(nn.Module):
    """No Sequential: an embedding somewhere inside."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(WORDS, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.table(x)).mean(1))
        return out


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def texts(transform: OneHot | None = None, kind: str = "i8") -> FederatedData:
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, (12, LENGTH)).astype(kind)
    y = (x == 3).any(1).astype(int)
    return from_arrays(x, y, [range(5), range(5, 12)], (x, y), transform=transform, classes=2)


def trained(module: nn.Module, made: FederatedData, objective: Objective, engine: Engine) -> Params:
    federation = Federation(module, made, objective, TRAINING, engine=engine)
    [done] = federation.run(1)
    assert done.metrics is not None
    return federation.params


def same(one: Params, other: Params) -> None:
    for name, p in one.items():
        torch.testing.assert_close(p, other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["u1", "i8"])
@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_token_ids_train_as_they_are(engine: Engine, kind: str) -> None:
    """As one-hot vectors do, and as a plain loop over the codes."""
    codes = trained(net(), texts(kind=kind), Supervised(), engine)
    same(codes, trained(net(), texts(OneHot(WORDS)), Supervised(), Sequential()))
    assert not torch.equal(codes["table.weight"], net().state_dict()["table.weight"])


def test_a_round_over_token_ids_is_a_plain_loops() -> None:
    made, total = texts(), dict[str, Tensor]()
    for k in range(2):
        module, rows = net(), made.clients[k]
        x, y = torch.from_numpy(made.x[rows]), torch.from_numpy(made.y[rows])
        nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        for name, p in module.named_parameters():
            assert p.grad is not None
            after = (p - 0.2 * p.grad).detach() * len(rows) / 12
            total[name] = total.get(name, torch.zeros_like(after)) + after
    federation = Federation(net(), made, Supervised(), Training(2, batch_size=7, lr=0.2))
    list(federation.run(1))
    same(federation.params, total)


MIXING: list[Objective] = [FedMix(0.1), NaiveMix(0.1), LocalMix(lam=0.1), GlobalMix(lam=0.1)]


@pytest.mark.parametrize("objective", MIXING, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_mixing_token_ids_is_refused_and_onehot_is_named(
    objective: Objective, engine: Engine
) -> None:
    said = r"mixes inputs, and those of arrays are integers, .* give transform=OneHot\(size\)"
    with pytest.raises(BadInput, match=said):
        Federation(net(), texts(), objective, TRAINING, engine=engine)
    trained(net(), texts(OneHot(WORDS)), objective, engine)


def test_mixed_one_hot_vectors_are_mixed_embeddings() -> None:
    """With a linear model, mixing before the embedding is mixing after it."""

    def linear() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(WORDS, 4), nn.Flatten(), nn.Linear(4 * LENGTH, 2))

    def first_loss(made: FederatedData, objective: Objective) -> float:
        [done] = Federation(linear(), made, objective, Training(2, batch_size=7)).run(1)
        return done.local_loss

    inputs = first_loss(texts(OneHot(WORDS)), NaiveMix(0.3))
    assert first_loss(texts(), Hidden(NaiveMix(0.3), layer=1)) == pytest.approx(inputs, rel=1e-6)


@pytest.mark.parametrize("mixes", [True, False])
def test_engines_agree_on_texts(mixes: bool) -> None:
    made, objective = (texts(OneHot(WORDS)), FedMix(0.1)) if mixes else (texts(), Supervised())
    one, *others = [trained(net(), made, objective, engine) for engine in EVERY]
    for other in others:
        same(one, other)


def test_numbers_that_are_integers_are_asked_to_be_floats() -> None:
    x = np.arange(24).reshape(12, 2)
    made = from_arrays(x, x[:, 0] % 2, [range(12)], (x, x[:, 0] % 2), classes=2)
    with pytest.raises(
        BadInput, match=r"does not take integers of shape \(2, 2\): .*make numbers floats, as by"
    ):
        Federation(nn.Linear(2, 2), made, Supervised(), Training(1))


@pytest.mark.parametrize("part", ["training", "test"])
@pytest.mark.parametrize("code", [-1, WORDS])
def test_codes_that_the_embedding_lacks_are_refused(code: int, part: str) -> None:
    """Of whichever sample, and before training: clients side by side took -1 for the last code."""
    right = texts()
    wrong = right.x.copy()
    wrong[7, 2] = code
    x, test_x = (wrong, right.x) if part == "training" else (right.x, wrong)
    made = from_arrays(x, right.y, [range(5), range(5, 12)], (test_x, right.y), classes=2)
    said = f"cannot look up all {part} inputs, codes in {min(code, 0)}..{max(code, WORDS - 1)}: "
    with pytest.raises(BadInput, match=said):
        Federation(net(), made, Supervised(), TRAINING)
