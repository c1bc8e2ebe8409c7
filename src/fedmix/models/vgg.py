"""The paper's modified VGG for CIFAR (appendix B), without batch norm."""

from torch import nn

from fedmix.core.registry import MODELS

WIDTHS = (32, 64, 128, 128, 256, 256)


@MODELS.add("vgg")
def vgg(
    classes: int = 10, widths: tuple[int, ...] = WIDTHS, hidden: int = 512, dropout: float = 0.1
) -> nn.Sequential:
    """Nine layers for 32x32 images: six 3x3 convolutions, then three linear layers.

    A max-pool follows every second convolution; dropout follows the second and third max-pool and
    precedes the last layer. Each child of the result is one of the layers.
    """
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(zip((3, *widths), widths, strict=False)):
        parts: list[nn.Module] = [nn.Conv2d(before, after, 3, padding=1)]
        if i % 2:
            parts.append(nn.MaxPool2d(2))  # before the ReLU: same result, a quarter of the work
        parts.append(nn.ReLU())
        if i in (3, 5):
            parts.append(nn.Dropout(dropout))
        layers.append(nn.Sequential(*parts))
    return nn.Sequential(
        *layers,
        nn.Sequential(nn.Flatten(), nn.Linear(widths[-1] * 4 * 4, hidden), nn.ReLU()),
        nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()),
        nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, classes)),
    )
