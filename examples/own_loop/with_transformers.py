"""FedMix in a Hugging Face Trainer: `compute_loss`, for images and for text.

    pip install fedmix transformers accelerate
    python examples/own_loop/with_transformers.py

The models are small and start from random weights, so that nothing is downloaded.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from fedmix.functional import MeanPool, fedmix_loss, means_of

CLASSES = 4


class FedMixTrainer(Trainer):  # type: ignore[misc]  # without transformers it has no type
    """A Trainer with FedMix's loss.

    Args:
        pool: The means to train against.
        field: The model's argument that is mixed: "pixel_values" or "inputs_embeds".
        lam: The mixing ratio.
        **kwargs: Arguments of `Trainer`.
    """

    def __init__(self, pool: MeanPool, field: str, lam: float = 0.05, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pool, self.field, self.lam = pool.to(self.args.device), field, lam
        # this loss is a mean over its batch, which accumulated gradients are to be divided by
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        if not model.training:  # evaluation is Trainer's own
            return super().compute_loss(model, inputs, return_outputs, **kwargs)
        x, y = inputs[self.field], inputs["labels"]
        return fedmix_loss(
            model, x, y, *self.pool.draw(1), lam=self.lam, expand="logits",
            forward=lambda net, x: net(**{self.field: x}).logits,
        )  # fmt: skip


class Samples(Dataset[dict[str, Tensor]]):
    """Inputs and labels by the names that a model takes."""

    def __init__(self, field: str, x: Tensor, y: Tensor) -> None:
        self.field, self.x, self.y = field, x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {self.field: self.x[row], "labels": self.y[row]}


def images() -> tuple[Any, Tensor, Tensor]:
    """A small ViT, and images of which one quarter is bright: the class."""
    y = torch.randint(CLASSES, (256,))
    x = 0.5 * torch.randn(256, 1, 8, 8)
    for row, quarter in enumerate(y.tolist()):
        top, left = 4 * (quarter // 2), 4 * (quarter % 2)
        x[row, :, top : top + 4, left : left + 4] += 1
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=8, patch_size=4, num_channels=1, num_labels=CLASSES,
    )  # fmt: skip
    return ViTForImageClassification(config), x, y


def text() -> tuple[Any, Tensor, Tensor]:
    """A small BERT, and the embeddings of texts in which words of one class are frequent.

    Token ids cannot be averaged, and word vectors can. They are not trained here: means of vectors
    that move would be out of date after the first step.
    """
    config = BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, num_labels=CLASSES,
    )  # fmt: skip
    net = BertForSequenceClassification(config)
    words = net.get_input_embeddings().requires_grad_(False)
    words.weight.normal_()
    y = torch.randint(CLASSES, (256,))
    own = 10 * y[:, None] + torch.randint(10, (256, 12))
    tokens = torch.where(torch.rand(256, 12) < 0.5, own, torch.randint(40, (256, 12)))
    return net, words(tokens), y


def main() -> None:
    for field, make in (("pixel_values", images), ("inputs_embeds", text)):
        torch.manual_seed(0)
        net, x, y = make()
        pool = MeanPool.merge([means_of(x, y, m=16, classes=CLASSES)])
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder, num_train_epochs=6, per_device_train_batch_size=16, learning_rate=2e-3,
                report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
            )  # fmt: skip
            trainer = FedMixTrainer(
                pool, field, model=net, args=arguments, train_dataset=Samples(field, x, y)
            )
            before = float(trainer.predict(Samples(field, x, y)).metrics["test_loss"])
            trainer.train()
            done = trainer.predict(Samples(field, x, y))
        accuracy = float((torch.from_numpy(done.predictions).argmax(1) == y).float().mean())
        print(
            f"{field}: loss {before:.2f} -> {done.metrics['test_loss']:.2f}, "
            f"accuracy {100 * accuracy:.1f} %"
        )


if __name__ == "__main__":
    main()
