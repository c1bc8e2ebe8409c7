"""A small CNN for 32x32 images, for runs on a laptop."""

from torch import nn

from fedmix.core.registry import MODELS
from fedmix.models.layers import UnitFeatures


@MODELS.add("cnn")
def cnn(classes: int = 10, channels: int = 3, normalise: bool = False) -> nn.Sequential:
    """Four layers for 32x32 images: 5x5 convolutions of 16 and 32 channels, then 120, classes.

    Each child of the result is one of the layers. With `normalise`, features are scaled to mean
    square 1 before the last layer.
    """
    features = [nn.Linear(32 * 5 * 5, 120), nn.ReLU(), *([UnitFeatures()] if normalise else [])]
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        nn.Sequential(*features),
        nn.Linear(120, classes),
    )
