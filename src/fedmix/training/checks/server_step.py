"""Check of a server step on a trial round, before anything runs."""

import torch

from fedmix.core.errors import BadInput, FedmixError
from fedmix.core.types import Params
from fedmix.models.functional import Model
from fedmix.server_steps import ServerStep


def check_server_step(step: ServerStep, model: Model) -> None:
    """Raise BadInput for a server step that returns no state and weights like those it got.

    It takes one step on the CPU, from the model's weights to the same weights.
    """
    name, weights, mean = type(step).__name__, model.init(), model.init()
    state = step.init(model.init())
    _check_tensors(f"{name}.init", "a state", state)
    try:
        result = step(dict(state), weights, mean)
    except FedmixError:
        raise
    except Exception:  # the first round fails too
        return
    if not isinstance(result, tuple) or len(result) != 2:
        raise BadInput(f"the server step {name} must return a state and weights, as a tuple")
    for what, new, old in (("state", result[0], state), ("weights", result[1], mean)):
        _check_tensors(f"the server step {name}", what, new)
        if _kinds(new) != _kinds(old):
            raise BadInput(
                f"the server step {name} returns {what} with other names, shapes or types than it "
                f"gets; {'its `init` gives the first state' if what == 'state' else 'keep them'}"
            )
    if any(
        not torch.equal(p, weights[n]) or not torch.equal(p, mean[n])
        for n, p in model.init().items()
    ):
        raise BadInput(f"the server step {name} changes its arguments; return new tensors")


def _check_tensors(who: str, what: str, value: object) -> None:
    if not isinstance(value, dict) or not all(isinstance(t, torch.Tensor) for t in value.values()):
        raise BadInput(f"{who} must return {what} as a dict of tensors by name")


def _kinds(tensors: Params) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {n: (t.shape, t.dtype) for n, t in tensors.items()}
