"""FedMix in a training loop of your own: losses for any module, and means to train against.

```python
mine = means_of(x, y, m=50, noise=0.1, clip=4.0)
pool = MeanPool.merge([mine, *received])
for x, y in loader:
    loss = fedmix_loss(net, x, y, *pool.draw(1), lam=0.05, expand="logits")
    loss.backward(); opt.step(); opt.zero_grad()
```
"""

from fedmix.functional.losses import fedmix_loss, localmix_loss, naivemix_loss, prox
from fedmix.functional.means import Released, means_of
from fedmix.functional.pool import MeanPool

__all__ = [
    "MeanPool",
    "Released",
    "fedmix_loss",
    "localmix_loss",
    "means_of",
    "naivemix_loss",
    "prox",
]
