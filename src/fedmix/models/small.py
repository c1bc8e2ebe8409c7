"""Small models for the embedded data: a CNN for 8x8 digits and a two-layer MLP for vectors."""

from torch import nn

from fedmix.core.registry import MODELS
from fedmix.models.layers import UnitFeatures


@MODELS.add("digits_cnn")
def digits_cnn(classes: int = 10, normalise: bool = False) -> nn.Sequential:
    """Four layers for 8x8 images; each child of the result is one of them.

    With `normalise`, features are scaled to mean square 1 before the last layer.
    """
    features = [nn.Linear(32 * 4 * 4, 64), nn.ReLU(), *([UnitFeatures()] if normalise else [])]
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        nn.Sequential(*features),
        nn.Linear(64, classes),
    )


@MODELS.add("mlp")
def mlp(inputs: int, outputs: int, hidden: int = 32) -> nn.Sequential:
    """Two layers with a tanh between them, for vectors."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh()), nn.Linear(hidden, outputs)
    )
