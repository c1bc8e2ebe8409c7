"""The paper's Shakespeare model (appendix B): embedding, two LSTM layers of 256, one linear."""

from torch import nn

from fedmix.core.registry import MODELS
from fedmix.models.layers import LSTM, Embedding, LastStep


@MODELS.add("charlstm")
def charlstm(classes: int = 84, embedding: int = 8, hidden: int = 256) -> nn.Sequential:
    """Predict the character after a window; each child of the result is one of its four layers.

    The input is one-hot, (B, T, classes). The embedding is then a matrix product, so a mean of
    one-hot windows gives exactly the mean of their embeddings.
    """
    return nn.Sequential(
        Embedding(classes, embedding),
        LSTM(embedding, hidden),
        nn.Sequential(LSTM(hidden, hidden), LastStep()),
        nn.Linear(hidden, classes),
    )
