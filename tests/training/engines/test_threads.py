"""Threads that share a step: one for small models, all for large ones, and what the user says."""

import pytest
import torch
from torch import nn

from fedmix import Federation, Supervised, Training, models
from fedmix.core.sharing import sharing
from fedmix.models import Model
from fedmix.training.engines import threads
from fedmix.training.engines.threads import OURS, threads_for
from tests.synthetic import federated


class Written(nn.Module):
    """Products in a forward of one's own: 2 x (64·500 + 500·128) = 192,000 a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 500), nn.Parameter(torch.zeros(500, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.linear(input=x.flatten(1), weight=self.first.weight)
        return hidden @ self.second


PICTURE, WINDOW = torch.zeros(1, 1, 8, 8), torch.zeros(1, 80, 84)


@pytest.fixture(autouse=True)
def _four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four cores, of which nobody has said how many to use."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "AT_FIRST", 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)


@pytest.mark.parametrize(
    ("module", "sample", "batch", "expected"),
    [
        (models.digits_cnn(), PICTURE, 10, 1),  # 0.7 million operations a picture, forward
        (models.digits_cnn(), PICTURE, 148, 1),
        (models.digits_cnn(), PICTURE, 149, 4),
        (models.charlstm(), WINDOW, 1000, 1),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.Linear(1000, 10)), PICTURE, 10, 1),
        (Written(), PICTURE, 520, 1),
        (Written(), PICTURE, 521, 4),
    ],
    ids=["small", "small-and-many", "large", "lstm", "full", "written", "written-and-many"],
)
def test_by_the_size_of_its_operations(
    module: nn.Module, sample: torch.Tensor, batch: int, expected: int
) -> None:
    """2 x (8·8·16·9 + 8·8·32·16·9 + 512·64 + 64·10) = 675,072, of which 148.1 are 10^8."""
    assert threads_for(Model(module), sample, batch) == expected


def test_what_the_user_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(models.digits_cnn())
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads_for(model, PICTURE, 10) is None
    monkeypatch.setenv(OURS, "1")  # but that was fedmix
    assert threads_for(model, PICTURE, 10) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert threads_for(model, PICTURE, 10) is None


def test_they_share_the_training_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: now.__setitem__(0, count))
    training = Training(clients_per_round=2)
    federation = Federation(models.digits_cnn(), federated("digits_cnn"), Supervised(), training)
    assert federation.how()["threads"] == "1"
    seen, real = [], federation._train_clients

    def looked(*args: object) -> object:
        seen.append(now[0])
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(federation, "_train_clients", looked)
    list(federation.run(2))
    assert seen == [1, 1]
    assert now == [4]
    with sharing(2):
        assert now == [2]
    assert now == [4]
