"""The plain loop and the reference engine share no step, and come to the same weights from the same
draws.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedmix import (
    BadInput,
    Exchange,
    Federation,
    FedMix,
    LocalMix,
    NaiveMix,
    Objective,
    Proximal,
    Supervised,
    Training,
    models,
)
from fedmix.bench.functional import functional_loss
from fedmix.bench.plain import LoopLoss, PlainCharLSTM, PlainLoop, fedmix, loop_loss
from fedmix.models import initialised
from fedmix.training.batches import Received
from fedmix.training.engines import Sequential
from tests.synthetic import SHAPES, Exactly, federated

SIZES = (7, 1, 12)
OBJECTIVES: dict[str, Objective] = {
    "fedavg": Supervised(),
    "naivemix": NaiveMix(0.2),
    "fedmix": FedMix(0.2),
}
MIXED: dict[str, Objective] = {
    "naivemix": NaiveMix(0.2),
    "fedmix": FedMix(0.2),
    "fedmix-logits": FedMix(0.2, expand="logits"),
}


def without_dropout() -> nn.Module:
    return models.vgg(classes=10, widths=(4, 4, 8, 8, 8, 8), hidden=16, dropout=0.0)


def small_plain_lstm() -> nn.Module:
    return PlainCharLSTM(classes=12, embedding=4, hidden=8)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "digits_cnn": (SHAPES["digits_cnn"][0], SHAPES["digits_cnn"][0]),
    "lenet": (SHAPES["lenet"][0], SHAPES["lenet"][0]),
    "vgg": (without_dropout, without_dropout),
    "charlstm": (SHAPES["charlstm"][0], small_plain_lstm),
}


@pytest.mark.parametrize(
    ("name", "loss"),
    [*((name, loop_loss) for name in OBJECTIVES), *((name, functional_loss) for name in MIXED)],
)
@pytest.mark.parametrize("kind", MODELS)
def test_loops_agree_with_the_reference_engine(
    kind: str, name: str, loss: Callable[[Objective], LoopLoss]
) -> None:
    """Two rounds of ragged clients, crops and flips on, in float64."""
    objective, (build, build_plain) = (OBJECTIVES | MIXED)[name], MODELS[kind]
    data = federated(kind, SIZES)
    data = replace(data, transform=Exactly(data.transform))
    training = Training(
        len(SIZES), epochs=2, batch_size=4, lr=0.02, momentum=0.9, weight_decay=1e-3
    )
    exchange = Exchange(m=1) if objective.needs.means else None

    def trained(plain: bool) -> Federation:
        federation = Federation(
            initialised(build, 1).double(),
            data,
            objective,
            training,
            exchange=exchange,
            engine=Sequential(),
            seed=3,
        )
        if plain:
            federation.runner = PlainLoop(
                build_plain().double(), loss(objective), training, federation.device
            )
        list(federation.run(2, evaluate_every=2))
        return federation

    ours, theirs = trained(False), trained(True)
    start = initialised(build, 1).double().state_dict()
    gap = max(float((ours.params[n] - theirs.params[n]).abs().max()) for n in ours.params)
    moved = max(float((ours.params[n] - start[n]).abs().max()) for n in ours.params)
    assert moved > 1e-2
    assert gap < 1e-10


def test_third_term_of_a_linear_model_by_hand() -> None:
    """f(x) = w·x with two outputs and B = 2: ∂ℓ_i/∂x = (p_i − y_i)ᵀ W, and ℓ3 = λ·mean_i (p_i −
    y_i)ᵀ W x̄.
    """
    lam, weight = 0.25, torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    module = nn.Linear(2, 2, bias=False)
    module.load_state_dict({"weight": weight})
    x, y = torch.tensor([[1.0, 2.0], [-1.0, 0.5]]), torch.tensor([0, 1])
    mean = Received(torch.tensor([0.3, -0.7]), torch.tensor([0.4, 0.6]))
    z = (1 - lam) * x @ weight.T
    p, own = torch.softmax(z, 1), torch.eye(2)[y]
    first = -(own * p.log()).sum(1).mean()
    second = -(mean.y * p.log()).sum(1).mean()
    third = ((p - own) @ (weight @ mean.x)).mean()
    by_hand = (1 - lam) * first + lam * second + lam * third
    assert float(third.abs()) > 0.1
    assert torch.allclose(fedmix(module, x, y, mean, lam), by_hand, atol=1e-6)


@pytest.mark.parametrize(
    "objective",
    [
        LocalMix(alpha=1.0),
        FedMix(0.1, expand="logits"),
        FedMix(0.1, per="sample"),
        FedMix(0.1, third=0.0),
        Supervised() + Proximal(0.1),
    ],
)
def test_objectives_that_nobody_wrote_as_a_loop_are_refused(objective: Objective) -> None:
    with pytest.raises(BadInput, match="the plain loop knows fedavg, naivemix, fedmix"):
        loop_loss(objective)


@pytest.mark.parametrize("objective", [Supervised(), LocalMix(alpha=1.0), FedMix(0.1, third=0.0)])
def test_objectives_that_are_no_function_are_refused(objective: Objective) -> None:
    with pytest.raises(BadInput, match=r"fedmix\.functional knows naivemix, fedmix, fedmix-logits"):
        functional_loss(objective)


def test_the_lstm_is_the_same_function_also_when_differentiated_by_its_input() -> None:
    ours, theirs = initialised(models.charlstm, 0), PlainCharLSTM()
    with torch.no_grad():
        weights = [w for w in theirs.parameters() if w.requires_grad]
        for weight, start in zip(weights, ours.parameters(), strict=True):
            weight.copy_(start)
    x = torch.softmax(
        torch.randn(2, 80, 84, generator=torch.Generator().manual_seed(0)), -1
    ).requires_grad_()
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)
    [a], [b] = (torch.autograd.grad(m(x).square().sum(), x) for m in (ours, theirs))
    assert torch.allclose(a, b, atol=1e-5)
