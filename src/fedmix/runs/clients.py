"""clients.json and gallery.safetensors: what clients hold, and some of what they exchange."""

import math

import numpy as np

from fedmix.data.transforms import Images
from fedmix.runs.folder import as_json
from fedmix.training.rounds import Rounds

GALLERY = 12  # images of each kind


def clients_of(federation: Rounds, *, scored: bool = False) -> bytes:
    """Return clients.json: how many samples each client holds, and of which classes.

    If `scored`, it also has the model's score on each client's own test samples, null if not
    finite.
    """
    clients = federation.holdings()
    if scored:
        scores = federation.evaluate_clients().scores.tolist()
        clients["scores"] = [score if math.isfinite(score) else None for score in scores]
    return as_json(clients, indent=None)


def gallery_of(federation: Rounds) -> bytes | None:
    """Return gallery.safetensors: exchanged means, and single samples, as m=1 would have sent them.

    None if no means of images are exchanged.
    """
    data, exchange = federation.data, federation.exchange
    if (
        exchange is None
        or federation.needs.layer
        or exchange.how.source != "pool"
        or not isinstance(data.transform, Images)
    ):
        return None
    from safetensors.torch import save

    assert exchange.pool is not None
    few = min(GALLERY, len(data.clients))
    samples = data.units(np.stack([data.x[data.clients[k][0]] for k in range(few)]))
    return save({"means": exchange.pool.x[:GALLERY].contiguous(), "samples": samples.contiguous()})
