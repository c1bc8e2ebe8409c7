"""FedMix in a Lightning module: one line of `training_step`.

pip install fedmix lightning
python examples/own_loop/with_lightning.py
"""

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedmix.functional import MeanPool, fedmix_loss, means_of


class Classifier(L.LightningModule):  # type: ignore[misc]  # without Lightning it has no type
    """A classifier that trains against means of others, with batch normalisation and dropout."""

    def __init__(self, pool: MeanPool, lam: float = 0.05) -> None:
        super().__init__()
        self.pool, self.lam = pool, lam
        self.net = nn.Sequential(
            nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5)
        )

    def on_fit_start(self) -> None:
        self.pool = self.pool.to(self.device)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        loss = fedmix_loss(self.net, x, y, *self.pool.draw(1), lam=self.lam, expand="logits")
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def client(number: int, samples: int = 500) -> tuple[Tensor, Tensor]:
    """Samples of one client: five clusters, of which it has two."""
    drawn = torch.Generator().manual_seed(number)
    centres = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    y = torch.randint(2, (samples,), generator=drawn) + number % 4
    return centres[y] + torch.randn(samples, 20, generator=drawn), y


def main() -> None:
    L.seed_everything(0)
    x, y = client(0)
    received = [means_of(*client(other), m=50, classes=5) for other in (1, 2, 3)]
    pool = MeanPool.merge([means_of(x, y, m=50, classes=5), *received])
    model = Classifier(pool)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True))
    model.eval()
    with torch.no_grad():
        right = (model.net(x).argmax(1) == y).float().mean()
    print(f"accuracy {100 * right:.1f} % after 3 epochs")


if __name__ == "__main__":
    main()
