"""Objectives that break the rules are refused before anything runs, with either engine; those that
keep them are not.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import Federation, Training, models
from fedmix.core.errors import BadInput
from fedmix.core.losses import cross_entropy, squared_error
from fedmix.core.types import Batch, Params
from fedmix.data import FederatedData, from_arrays
from fedmix.data.transforms import Plain
from fedmix.models.functional import Model
from fedmix.objectives import (
    FedMix,
    GlobalMix,
    Hidden,
    LocalMix,
    NaiveMix,
    Needs,
    Objective,
    Proximal,
    Supervised,
    batch_mean,
)
from fedmix.training.checks import check_objective
from fedmix.training.engines import Engine, Vectorised
from tests.synthetic import ENGINES, NAMES, arrays, federated


class Own(Objective):
    """Any function of the samples' losses, the batch and the weights."""

    def __init__(self, value: Callable[[Tensor, Batch, Params], Tensor], **needs: str) -> None:
        self.value, self.asked = value, needs

    @property
    def needs(self) -> Needs:
        return Needs(**self.asked)  # type: ignore[arg-type]

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG002
        return self.value(
            model.loss.value(model(params, batch.x, batch.key), batch.y), batch, params
        )


def present(field: Tensor | None) -> Tensor:
    assert field is not None
    return field


NET = models.digits_cnn()


def start(objective: Objective, engine: Engine) -> Federation:
    return Federation(NET, federated("digits_cnn"), objective, Training(5), engine=engine)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize(
    "value",
    [
        lambda losses, _batch, _params: losses.mean(),
        lambda losses, _batch, _params: losses.sum(),
        lambda losses, batch, _params: (
            losses * batch.mask
        ).mean(),  # over as many as there would be without padding
        lambda losses, batch, _params: batch_mean(losses, batch.mask) + (batch.x**2).mean(),
    ],
)
def test_padding_that_counts_is_refused(
    value: Callable[[Tensor, Batch, Params], Tensor], engine: Engine
) -> None:
    with pytest.raises(
        BadInput, match=r"the objective Own lets padding count: .* batch_mean\(values, batch.mask\)"
    ):
        start(Own(value), engine)


def test_a_term_of_a_sum_and_of_hidden_states_is_seen() -> None:
    wrong = Own(lambda losses, _batch, _params: losses.mean())
    with pytest.raises(BadInput, match="lets padding count"):
        start(Supervised() + wrong, Vectorised())
    with pytest.raises(BadInput, match="lets padding count"):
        start(Hidden(FedMix(0.1), layer=1) + wrong, Vectorised())
    with pytest.raises(BadInput, match="lets padding count"):
        start(Proximal(0.1) + wrong, Vectorised())


def test_one_sample_is_enough_to_try_an_objective() -> None:
    federation = Federation(nn.Linear(4, 3), arrays(1, clients=1), Supervised(), Training(1))
    assert [r.round for r in federation.run(1)] == [1]


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize(
    "noise", [torch.randn, lambda n: torch.from_numpy(np.random.default_rng().normal(size=n))]
)
def test_random_numbers_of_its_own_are_refused(
    noise: Callable[[int], Tensor], engine: Engine
) -> None:
    with pytest.raises(
        BadInput,
        match=r"Own gives two values for the same batch, .* draws random numbers by itself",
    ):
        start(
            Own(lambda losses, batch, _params: batch_mean(losses + noise(len(losses)), batch.mask)),
            engine,
        )


class Spy(Objective):
    """It asks for something, and notes the batches that it gets."""

    def __init__(self, needs: Needs) -> None:
        self.asked, self.seen = needs, list[Batch]()

    @property
    def needs(self) -> Needs:
        return self.asked

    def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:  # noqa: ARG002
        self.seen.append(batch)
        return next(iter(params.values())).sum() * 0


@pytest.mark.parametrize(
    ("needs", "more"),
    [
        (Needs(), set()),
        (Needs(means="batch"), {"mean_x", "mean_y"}),
        (Needs(means="sample", layer=1), {"mean_x", "mean_y"}),
        (Needs(partner="local", alpha=1.0), {"partner_x", "partner_y", "lam"}),
        (Needs(partner="global"), {"partner_x", "partner_y"}),
    ],
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
        Own(
            lambda losses, batch, params: (
                batch_mean(losses, batch.mask) + sum((p**2).sum() for p in params.values())
            )
        ),
        Own(
            lambda losses, batch, _params: (
                batch_mean(losses, batch.mask) + present(batch.mean_x).mean()
            ),
            means="batch",
        ),
        Own(
            lambda losses, batch, _params: batch_mean(
                losses * present(batch.mean_y)[:, 0], batch.mask
            ),
            means="sample",
        ),
        Own(
            lambda losses, batch, _params: batch_mean(
                losses * present(batch.partner_y)[:, 0], batch.mask
            ),
            partner="local",
        ),
    ],
)
def test_what_keeps_the_rules_trains_alike_on_both_engines(objective: Objective) -> None:
    one, other = (start(objective, engine) for engine in ENGINES)
    assert [r.round for r in one.run(1)] == [r.round for r in other.run(1)] == [1]
    for name, weights in one.params.items():
        torch.testing.assert_close(weights, other.params[name], atol=1e-5, rtol=1e-4)


# What cannot be mixed


class Tokens(nn.Module):
    """Whole numbers into an embedding, with numbers beside them."""

    def __init__(self, beside: int = 0) -> None:
        super().__init__()
        self.ids, self.embedding, self.last = (
            4 - beside,
            nn.Embedding(9, 5),
            nn.Linear(5 + beside, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x[:, : self.ids].long()).mean(1)
        out: Tensor = self.last(torch.cat([words, x[:, self.ids :]], 1))
        return out


def ids(beside: int = 0) -> FederatedData:
    rng = np.random.default_rng(0)
    x = np.hstack([rng.integers(0, 9, (12, 4 - beside)), rng.normal(size=(12, beside))])
    y = rng.integers(0, 3, 12)
    return from_arrays(x, y, [range(6), range(6, 12)], (x, y), classes=3)


@pytest.mark.parametrize("beside", [0, 2])
@pytest.mark.parametrize(
    "objective", [FedMix(0.1), NaiveMix(0.1), LocalMix(alpha=1.0), GlobalMix(lam=0.5)], ids=str
)
def test_token_ids_are_not_mixed(objective: Objective, beside: int) -> None:
    """The mean of words 3 and 5 is not word 4."""
    with pytest.raises(
        BadInput, match=r"takes inputs for whole numbers, .*OneHot.*mix at the embedding by Hidden"
    ):
        Federation(Tokens(beside), ids(beside), objective, Training(2))


@pytest.mark.parametrize("beside", [0, 2])
def test_nor_where_the_first_and_the_last_sample_have_the_same_ids(beside: int) -> None:
    """So of two samples alone one could not tell that the model follows them."""
    data = ids(beside)
    data.x[-1, : 4 - beside] = data.x[0, : 4 - beside]
    with pytest.raises(BadInput, match="takes inputs for whole numbers"):
        Federation(Tokens(beside), data, NaiveMix(0.1), Training(2))


def test_token_ids_train_where_nothing_mixes_them() -> None:
    list(Federation(Tokens(), ids(), Supervised(), Training(2)).run(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long()).flatten(1)  # type: ignore[no-any-return]


def test_words_are_mixed_at_the_embedding() -> None:
    module = nn.Sequential(Words(), nn.Linear(20, 3))
    list(Federation(module, ids(), Hidden(FedMix(0.1), layer=1), Training(2)).run(1))


class Part(nn.Linear):
    """Looks at the first two inputs alone, and after a max-pool."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.nn.functional.max_pool1d(x[:, None, :2], 2)[:, 0])


@pytest.mark.parametrize(
    "module", [Part(1, 3), nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))]
)
def test_whole_numbers_that_a_model_takes_for_numbers_are_mixed(module: nn.Module) -> None:
    """Also where an input has no part in it, and where the last weights are zero."""
    for p in list(module.parameters())[-2:]:
        nn.init.zeros_(p)
    Federation(module, ids(), NaiveMix(0.1), Training(2))


@pytest.mark.parametrize("seed", [25, 179, 305])
def test_units_that_are_dead_for_two_samples_are_no_token_ids(seed: int) -> None:
    """With these weights, pixels that no live unit sees change the outputs as soon as others wake a
    unit there.
    """
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).numpy()
    pictures = from_arrays(x, np.array([0, 1]), [[0], [1]], (x, np.array([0, 1])), classes=3)
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip
    Federation(module, pictures, NaiveMix(0.1), Training(2))


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """(1 − p)²·(−log p) with p = Σ y_c·softmax(z)_c (Lin et al. 2017)."""
    p = (outputs.softmax(-1) * targets).sum(-1)
    return -((1 - p) ** 2) * p.log()


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).sum(-1)


@pytest.mark.parametrize("value", [focal, squares])
@pytest.mark.parametrize(
    "objective", [FedMix(0.1), NaiveMix(0.1), Hidden(NaiveMix(0.1), 1)], ids=str
)
def test_a_loss_that_is_not_linear_in_its_target_is_refused_with_means(
    value: Callable[[Tensor, Tensor], Tensor], objective: Objective
) -> None:
    own = replace(cross_entropy, name="own", value=value)
    with pytest.raises(
        BadInput,
        match=r"the loss 'own' is not linear in its target, .* use cross_entropy or squared_error",
    ):
        Federation(NET, federated("digits_cnn"), objective, Training(5), loss=own)
    for without in (
        Supervised(),
        LocalMix(lam=0.3),
    ):  # labels of samples, each in a term of its own
        Federation(NET, federated("digits_cnn"), without, Training(5), loss=own)


def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy.value(outputs, 0.9 * targets + 0.01)


def test_a_loss_that_is_linear_is_not() -> None:
    for own in (replace(cross_entropy, value=smooth), squared_error):
        Federation(NET, federated("digits_cnn"), FedMix(0.1), Training(5), loss=own)


@pytest.mark.parametrize(
    "objective", [Supervised(), FedMix(0.1), NaiveMix(0.1), LocalMix(lam=0.2)], ids=str
)
def test_class_indices_are_not_taken_for_label_vectors(objective: Objective) -> None:
    """With as many samples as classes, they would be broadcast."""
    model = Model(nn.Linear(4, 3))
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    vectors = torch.nn.functional.one_hot(y).float()
    wrong = Batch(x, y, torch.ones(3), torch.tensor(0), x[:1], vectors[:1], x, vectors)
    with pytest.raises(
        BadInput,
        match=r"targets of shape \(3,\) for outputs of shape \(3, 3\); give each sample a vector",
    ):
        objective(model, model.init(), model.init(), wrong)
    right = wrong._replace(y=vectors)
    assert objective(model, model.init(), model.init(), right).shape == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_objective_that_is_no_number_at_once_is_refused_as_that(value: float) -> None:
    with pytest.raises(
        BadInput, match=rf"the objective Own is {value} before any training; look at its parameters"
    ):
        start(
            Own(lambda losses, batch, _params: batch_mean(losses, batch.mask) * value), Vectorised()
        )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda losses, _batch, _params: losses, r"value of shape \(1,\); let it return a tensor"),
        (lambda *_: None, "value of type NoneType; let it"),
        (lambda losses, _batch, _params: losses.sum().item(), "value of type float; let it"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_an_objective_returns_one_number(
    value: Callable[[Tensor, Batch, Params], Tensor], said: str, engine: Engine
) -> None:
    with pytest.raises(BadInput, match=f"the objective Own returns a {said}"):
        start(Own(value), engine)


def test_an_objective_that_would_train_nothing_is_refused() -> None:
    """As one does that takes the module itself, or a loss without its derivative."""

    def of_another(model: Model, _params: Params, _anchor: Params, batch: Batch) -> Tensor:
        return batch_mean(model.loss(NET(batch.x), batch.y).detach(), batch.mask)

    with pytest.raises(BadInput, match="of_another does not depend on the weights, so that noth"):
        Federation(NET, federated("digits_cnn"), of_another, Training(5))


@dataclass(frozen=True)
class Transformed(Plain):
    """A transform of anyone's own."""

    function: Callable[[Tensor], Tensor] = torch.abs

    def normalise(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_a_transform_that_looks_at_the_batch_or_draws_numbers_is_refused() -> None:
    net, data = nn.Linear(4, 3), arrays()
    for words, function in (
        (
            "Transformed makes of a sample depends on the other samples of its batch",
            lambda x: x - x.mean(),
        ),
        ("Transformed gives two results for the same samples", lambda x: x + torch.rand(x.shape)),
    ):
        with pytest.raises(BadInput, match=words):
            Federation(
                net,
                replace(data, transform=Transformed(function=function)),
                Supervised(),
                Training(2),
            )
    Federation(net, replace(data, transform=Transformed()), Supervised(), Training(2))


@dataclass(frozen=True)
class Scaled(Plain):
    """A transform that scales in place, samples as they are stored."""

    def units(self, raw: Tensor) -> Tensor:
        return raw.mul_(2)


def test_a_transform_that_changes_what_it_is_given_is_refused_and_changes_nothing() -> None:
    """Each call would change the stored samples once more, and train on other ones."""
    data = arrays()
    before = data.x.copy(), data.held_out.x.copy()
    for wrong in (Scaled(), Transformed(function=lambda x: x.sub_(0.5))):
        name = type(wrong).__name__
        with pytest.raises(BadInput, match=f"{name} changes the samples that it is given, as x -="):
            Federation(nn.Linear(4, 3), replace(data, transform=wrong), Supervised(), Training(2))
    assert np.array_equal(data.x, before[0])
    assert np.array_equal(data.held_out.x, before[1])


def test_a_transform_that_makes_no_inputs_is_told_so() -> None:
    for words, function in (
        ("Transformed makes NaN or infinity of samples; look at its formula", torch.log),
        ("Transformed makes 7 inputs of 8 samples; make one of each", lambda x: x[1:]),
        (
            "weights are float32, and Transformed makes inputs float64; make both",
            torch.Tensor.double,
        ),
    ):
        made = replace(arrays(16), transform=Transformed(function=function))
        with pytest.raises(BadInput, match=words):
            Federation(nn.Linear(4, 3), made, Supervised(), Training(2))


SHAPES = r"values of shape \(2, 3\) for 2 samples; give one for each, as with reduction='none'"


@pytest.mark.parametrize("name", ["value", "report", "score"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda z, y: nn.functional.cross_entropy(z, y),
            r"gives values of shape \(\) for 2 samples",
        ),
        (lambda z, y: (z - y) ** 2, f"gives {SHAPES}"),
        (
            lambda z, y: (z.argmax(1, keepdim=True) == y.argmax(1)).float(),
            r"gives values of shape \(2, 2\)",
        ),
        (lambda z, y: float((z * y).sum()), "is of type float; give one for each"),
        (lambda z, y: z @ y, r"fails for outputs and targets of shape \(2, 3\): mat1 and mat2"),
    ],
    ids=["mean", "each target", "pairs", "float", "error"],
)
def test_a_loss_gives_one_value_for_each_sample(
    name: str, function: Callable[[Tensor, Tensor], Tensor], said: str
) -> None:
    """Others would be broadcast against the mask of a batch as large as the number of classes, or
    be averaged to another score.
    """
    loss = replace(cross_entropy, name="mine", **{name: function})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=f"the loss 'mine': its {name} {said}"):
        Federation(nn.Linear(4, 3), arrays(), Supervised(), Training(2), loss=loss)


def test_a_loss_that_takes_one_target_for_each_output_gets_them_of_a_mean() -> None:
    """Which all samples share: torch's binary cross-entropy does not broadcast."""
    z, y = torch.tensor([[0.0, 2.0], [-1.0, 0.5], [3.0, 1.0]]), torch.tensor([[1.0, 0.25]])
    binary = torch.nn.functional.binary_cross_entropy_with_logits
    loss = replace(cross_entropy, value=lambda z, y: binary(z, y, reduction="none").sum(1))
    by_hand = -(y * z.sigmoid().log() + (1 - y) * (1 - z.sigmoid()).log()).sum(1)
    assert torch.allclose(loss(z, y), by_hand)


@pytest.mark.parametrize("function", [lambda x: x - x.mean(0), lambda x: x / x.abs().max()])
@pytest.mark.parametrize("row", [0, 11])
@pytest.mark.parametrize("alike", [True, False])
def test_it_is_refused_whichever_samples_come_first_and_last(
    function: Callable[[Tensor], Tensor], row: int, alike: bool
) -> None:
    """A sample beside its like, and the largest one, are what they are alone."""
    data = arrays()
    data.x[row] *= 9
    if alike:
        data.x[11 - row] = data.x[row]
    changed = replace(data, transform=Transformed(function=function))
    with pytest.raises(BadInput, match="depends on the other samples of its batch"):
        Federation(nn.Linear(4, 3), changed, Supervised(), Training(2))
