"""Advice for error messages: which settings to change when training fails."""

from fedmix.objectives.base import Objective, parts
from fedmix.objectives.fedmix import FedMix


def advice(objective: Objective) -> str:
    """Say which settings of this objective to lower when training fails.

    For FedMix that expands the loss, it also names the form that is bounded below.

    >>> from fedmix import NaiveMix, Supervised
    >>> advice(Supervised())
    'lower the learning rate, momentum or weight decay'
    >>> advice(NaiveMix(0.1))
    'lower the learning rate, momentum, weight decay or lam'
    """
    all_parts = list(parts(objective))
    own = [
        name
        for name in ("lam", "mu")
        if any(getattr(part, name, None) is not None for part in all_parts)
    ]
    *most, last = "the learning rate", "momentum", "weight decay", *own
    unbounded = any(isinstance(part, FedMix) and part.expand == "loss" for part in all_parts)
    other = ", or take FedMix's logits form (objective.expand=logits)" if unbounded else ""
    return f"lower {', '.join(most)} or {last}{other}"
