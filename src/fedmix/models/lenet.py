"""LeNet-5 as in the paper, for FEMNIST (appendix B)."""

from torch import nn

from fedmix.core.registry import MODELS
from fedmix.models.layers import UnitFeatures


@MODELS.add("lenet")
def lenet(classes: int = 62, channels: int = 1, normalise: bool = False) -> nn.Sequential:
    """Five layers for 28x28 images: 5x5 convolutions of 6 and 16 channels, then 120, 84, classes.

    Each child of the result is one of the layers. With `normalise`, features are scaled to mean
    square 1 before the last layer.
    """
    features = [nn.Linear(120, 84), nn.ReLU(), *([UnitFeatures()] if normalise else [])]
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(16 * 5 * 5, 120), nn.ReLU()),
        nn.Sequential(*features),
        nn.Linear(84, classes),
    )
