"""Whether an objective keeps the rules, tried before anything runs: it draws nothing, and padding does not count in it."""

import torch

from fedmix.data.federated import FederatedData
from fedmix.errors import BadInput, FedmixError
from fedmix.models.functional import Model
from fedmix.objectives.base import Objective
from fedmix.types import Batch, Params, each_field


def check_objective(objective: Objective, model: Model, data: FederatedData) -> None:
    """Refuse an objective that gives a batch two values, or a sample another one where padding stands beside it.

    It is tried on the CPU, since a GPU would compile kernels for this.
    """
    model = model.to(torch.device("cpu"))
    params = model.init()
    padded = _two_samples(objective, model, params, data)
    alone = each_field(lambda t: t[:1] if t.ndim else t, padded)
    for phase in objective.phases():
        name = type(phase.objective).__name__
        try:
            one, beside, again = (float(phase.objective(model, params, params, b)) for b in (alone, padded, padded))
        except FedmixError:
            raise
        except Exception:  # the first step will fail too, and says where and with which input
            return
        if beside != again:
            raise BadInput(
                f"the objective {name} gives two values for the same batch, so runs could not be repeated: it draws random "
                "numbers by itself; what is random comes with the batch"
            )
        if abs(one - beside) > 1e-4 * abs(one) + 1e-5:
            raise BadInput(
                f"the objective {name} lets padding count: {one:.4g} for one sample, and {beside:.4g} with another beside it "
                "that batch.mask leaves out; take means over samples by batch_mean(values, batch.mask)"
            )


def _two_samples(objective: Objective, model: Model, params: Params, data: FederatedData) -> Batch:
    """A sample and, as padding, another one, with all that the objective needs."""
    needs, ends = objective.needs, [0, -1]
    x, y = data.inputs(data.x[ends]), data.labels(data.y[ends])
    hidden = model.head(needs.layer)(params, x) if needs.layer else x
    received = slice(0, 1 if needs.means == "batch" else 2)
    return Batch(
        x, y, torch.tensor([1.0, 0.0]), torch.tensor(1),
        mean_x=hidden.flip(0)[received] if needs.means else None, mean_y=y.flip(0)[received] if needs.means else None,
        partner_x=x.flip(0) if needs.partner else None, partner_y=y.flip(0) if needs.partner else None,
        lam=torch.tensor(0.3) if needs.alpha else None,
    )  # fmt: skip
