"""Federations that tests train alone and on several ranks.

python -m tests.ranks.federations FILE    # by each of the ranks; the first writes their states
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedmix import (
    DPFedAvg,
    Exchange,
    Federation,
    FedMix,
    GlobalMix,
    Hidden,
    LocalMix,
    NaiveMix,
    Objective,
    Proximal,
    Round,
    Supervised,
    Training,
)
from fedmix.core.ranks import here
from fedmix.models import initialised
from fedmix.objectives.scaffold import Scaffold
from fedmix.server_steps import FedAdam
from fedmix.training.engines import Sequential, Vectorised
from tests.synthetic import RAGGED, SHAPES, Exactly, federated

ROUNDS = 3
OBJECTIVES: dict[str, Objective] = {
    "supervised": Supervised(),
    "localmix+prox": LocalMix(alpha=1.0) + Proximal(0.1),
    "globalmix": GlobalMix(alpha=1.0),
    "naivemix": NaiveMix(0.1),
    "fedmix": FedMix(0.1),
    "hidden": Hidden(FedMix(0.1), layer=1),
    "scaffold": Supervised() + Scaffold(),
}


def moved(round_: int) -> Mapping[int, Any]:
    """Before the third round, a client loses most of its rows."""
    return {2: np.arange(10)} if round_ == 2 else {}


def slower(done: Round, federation: Federation) -> None:
    federation.lr_scale = 0.5**done.round


def build(name: str, *, exactly: bool, vectorised: bool) -> Federation:
    """A federation of five ragged clients, of whom four take part in a round."""
    module, data = initialised(SHAPES["digits_cnn"][0], seed=1), federated("digits_cnn", RAGGED)
    if exactly:
        module, data = module.double(), replace(data, transform=Exactly(data.transform))
    objective = OBJECTIVES[name]
    return Federation(
        module, data, objective, Training(4, epochs=1, batch_size=4, lr=0.01, momentum=0.9),
        exchange=Exchange(m=1) if objective.needs.means else None,
        engine=Vectorised() if vectorised else Sequential(),
        server=FedAdam() if name == "naivemix" else None, changes=moved, callbacks=[slower], seed=3,
        updates=DPFedAvg(0.05, 0.5) if name == "fedmix" else None,
        metrics={"largest": lambda outputs, _: float(outputs.max())},
    )  # fmt: skip


def cases() -> Iterator[tuple[str, Federation]]:
    for name in OBJECTIVES:
        yield f"{name} float64", build(name, exactly=True, vectorised=True)
        yield f"{name} one by one", build(name, exactly=False, vectorised=False)


def trained(federation: Federation) -> dict[str, Tensor]:
    """The state after some rounds, with their losses and metrics."""
    rounds = list(federation.run(ROUNDS))
    told = [[r.local_loss, *(r.metrics or {}).values()] for r in rounds]
    return federation.state() | {"told": torch.tensor(told, dtype=torch.float64)}


def main(path: str) -> None:
    found = {
        f"{name}/{key}": tensor.contiguous()
        for name, federation in cases()
        for key, tensor in trained(federation).items()
    }
    if here().rank == 0:
        save_file(found, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
