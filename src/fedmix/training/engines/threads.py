"""How many threads of a CPU share a local step.

Threads that sleep while they wait take some 0.05 ms to meet, and much longer on a busy machine. A
small model has hundreds of operations a step that take less: with ten clients of the digits' model
a step takes 3 ms on one thread and 8 to 23 on two.
"""

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedmix.models.functional import Model

OURS = "FEDMIX_THREADS"  # set where fedmix has set OMP_NUM_THREADS, and no user
WORTH_SHARING = 1e8  # operations of a client's batch, forward: some 0.2 ms in each of ten layers
AT_FIRST = torch.get_num_threads()  # of this process, unless the user changes it


def threads_for(model: Model, x: Tensor, batch: int) -> int | None:
    """Return the number of threads for steps of this model; None leaves it as the user set it.

    Args:
        model: The model.
        x: One sample, as the model takes it.
        batch: The number of samples in a batch.
    """
    if ("OMP_NUM_THREADS" in os.environ and OURS not in os.environ) or (
        torch.get_num_threads() != AT_FIRST
    ):
        return None
    if model.recurrent:  # its operations are those of one time step
        return 1
    with torch.no_grad(), Products() as counted:
        model(model.init(), x)
    return 1 if counted.operations * batch < WORTH_SHARING else AT_FIRST


LAYERS = (F.linear, F.conv1d, F.conv2d, F.conv3d)
MATRICES = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, torch.bmm)


class Products(TorchFunctionMode):
    """Counts the operations in convolutions, full layers and products of matrices.

    torch's own FlopCounterMode counts more kinds, and imports the compiler, which takes a second.
    """

    operations = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        if function in LAYERS:
            weight = kwargs["weight"] if "weight" in kwargs else args[1]
            self.operations += 2 * out.numel() * weight[0].numel()
        elif function in MATRICES:
            left = kwargs["input"] if "input" in kwargs else args[0]
            self.operations += 2 * out.numel() * left.shape[-1]
        return out
