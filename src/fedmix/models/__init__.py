"""The paper's models, small models for the embedded data, and modules as pure functions."""

from fedmix.models.charlstm import charlstm
from fedmix.models.cnn import cnn
from fedmix.models.functional import Model
from fedmix.models.group_norm import group_norm
from fedmix.models.initialise import initialised
from fedmix.models.layers import LSTM, Embedding, KeyedDropout, LastStep, UnitFeatures
from fedmix.models.lenet import lenet
from fedmix.models.small import digits_cnn, mlp
from fedmix.models.vgg import vgg

__all__ = [
    "Embedding",
    "LSTM",
    "KeyedDropout",
    "LastStep",
    "Model",
    "UnitFeatures",
    "charlstm",
    "cnn",
    "digits_cnn",
    "group_norm",
    "initialised",
    "lenet",
    "mlp",
    "vgg",
]
