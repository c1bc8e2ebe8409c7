"""Objectives that break the rules are refused before anything runs, with either engine; those that keep them are not."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import Federation, Training, models
from fedmix.errors import BadInput
from fedmix.models.functional import Model
from fedmix.objectives import FedMix, Hidden, Needs, Objective, Proximal, Supervised, batch_mean
from fedmix.objectives.check import check_objective
from fedmix.types import Batch, Params
from tests.synthetic import ENGINES, EngineName, arrays, federated


class Own(Objective):
    """Any function of the samples' losses, the batch and the weights."""

    def __init__(self, value: Callable[[Tensor, Batch, Params], Tensor], **needs: str) -> None:
        self.value, self.asked = value, needs

    @property
    def needs(self) -> Needs:
        return Needs(**self.asked)  # type: ignore[arg-type]

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG002
        return self.value(model.loss.value(model(params, batch.x, batch.key), batch.y), batch, params)


def present(field: Tensor | None) -> Tensor:
    assert field is not None
    return field


NET = models.digits_cnn()


def start(objective: Objective, engine: EngineName) -> Federation:
    return Federation(NET, federated("digits_cnn"), objective, Training(5), engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "value",
    [
        lambda losses, _batch, _params: losses.mean(),
        lambda losses, _batch, _params: losses.sum(),
        lambda losses, batch, _params: (losses * batch.mask).mean(),  # over as many as there would be without padding
        lambda losses, batch, _params: batch_mean(losses, batch.mask) + (batch.x**2).mean(),
    ],
)
def test_padding_that_counts_is_refused(value: Callable[[Tensor, Batch, Params], Tensor], engine: EngineName) -> None:
    with pytest.raises(BadInput, match=r"the objective Own lets padding count: .* batch_mean\(values, batch.mask\)"):
        start(Own(value), engine)


def test_a_term_of_a_sum_and_of_hidden_states_is_seen() -> None:
    wrong = Own(lambda losses, _batch, _params: losses.mean())
    with pytest.raises(BadInput, match="lets padding count"):
        start(Supervised() + wrong, "vectorised")
    with pytest.raises(BadInput, match="lets padding count"):
        start(Hidden(FedMix(0.1), layer=1) + wrong, "vectorised")
    with pytest.raises(BadInput, match="lets padding count"):
        start(Proximal(0.1) + wrong, "vectorised")


def test_one_sample_is_enough_to_try_an_objective() -> None:
    federation = Federation(nn.Linear(4, 3), arrays(1, clients=1), Supervised(), Training(1))
    assert [r.round for r in federation.run(1)] == [1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("noise", [torch.randn, lambda n: torch.from_numpy(np.random.default_rng().normal(size=n))])
def test_random_numbers_of_its_own_are_refused(noise: Callable[[int], Tensor], engine: EngineName) -> None:
    with pytest.raises(BadInput, match=r"Own gives two values for the same batch, .* draws random numbers by itself"):
        start(Own(lambda losses, batch, _params: batch_mean(losses + noise(len(losses)), batch.mask)), engine)


class Spy(Objective):
    """It asks for something, and notes the batches that it gets."""

    def __init__(self, needs: Needs) -> None:
        self.asked, self.seen = needs, list[Batch]()

    @property
    def needs(self) -> Needs:
        return self.asked

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG002
        self.seen.append(batch)
        return torch.zeros(())


@pytest.mark.parametrize(
    ("needs", "more"),
    [
        (Needs(), set()),
        (Needs(means="batch"), {"mean_x", "mean_y"}),
        (Needs(means="sample", layer=1), {"mean_x", "mean_y"}),
        (Needs(partner="local", alpha=1.0), {"partner_x", "partner_y", "lam"}),
        (Needs(partner="global"), {"partner_x", "partner_y"}),
    ],
    ids=str,
)
def test_what_an_objective_is_tried_with(needs: Needs, more: set[str]) -> None:
    """The first sample beside the last, as padding; each has the other for its mean or partner."""
    data, spy = arrays(), Spy(needs)
    model = Model(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)))
    check_objective(spy, model, data)
    alone, padded, again = spy.seen
    given = {name for name, value in padded._asdict().items() if value is not None}
    assert given == {"x", "y", "mask", "key", *more}
    x, y = torch.from_numpy(data.x[[0, 11]]).float(), torch.eye(3)[data.y[[0, 11]]]
    assert (padded.mask.tolist(), alone.mask.tolist()) == ([1.0, 0.0], [1.0])
    assert torch.equal(padded.x, x)
    assert torch.equal(again.x, x)
    assert torch.equal(alone.x, x[:1])
    if padded.partner_x is not None:
        assert torch.equal(padded.partner_x, x.flip(0))
        assert torch.equal(present(padded.partner_y), y.flip(0))
    if padded.mean_x is not None:
        first = list(model.init().values())[:2]
        states = x @ first[0].T + first[1] if needs.layer else x
        count = 1 if needs.means == "batch" else 2
        torch.testing.assert_close(padded.mean_x, states.flip(0)[:count])
        assert torch.equal(present(padded.mean_y), y.flip(0)[:count])
    if padded.lam is not None:
        assert 0 < padded.lam < 1


@pytest.mark.parametrize(
    "objective",
    [
        Own(lambda losses, batch, _params: batch_mean(losses, batch.mask)),
        Own(lambda losses, batch, _params: (losses * batch.mask).sum() / batch.mask.sum()),
        Own(lambda losses, batch, _params: torch.where(batch.mask > 0, losses, 0).sum()),
        Own(lambda losses, batch, params: batch_mean(losses, batch.mask) + sum((p**2).sum() for p in params.values())),
        Own(lambda losses, batch, _params: batch_mean(losses, batch.mask) + present(batch.mean_x).mean(), means="batch"),
        Own(lambda losses, batch, _params: batch_mean(losses * present(batch.mean_y)[:, 0], batch.mask), means="sample"),
        Own(lambda losses, batch, _params: batch_mean(losses * present(batch.partner_y)[:, 0], batch.mask), partner="local"),
    ],
)
def test_what_keeps_the_rules_trains_alike_on_both_engines(objective: Objective) -> None:
    one, other = (start(objective, engine) for engine in ENGINES)
    assert [r.round for r in one.run(1)] == [r.round for r in other.run(1)] == [1]
    for name, weights in one.params.items():
        torch.testing.assert_close(weights, other.params[name], atol=1e-5, rtol=1e-4)
