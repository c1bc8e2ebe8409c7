"""What to change where training comes to nothing."""

from fedmix.objectives.base import Objective, parts
from fedmix.objectives.fedmix import FedMix


def advice(objective: Objective) -> str:
    """What to lower, of what this objective has, and the form of FedMix that is bounded below where
    it has the other.

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
