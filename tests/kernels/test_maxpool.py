"""Max-pooling by pick and put: PyTorch's function and gradients, ties and odd sizes included."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from fedmix import models
from fedmix.kernels import maxpool
from fedmix.kernels.maxpool import _Put, largest, pick
from fedmix.models import initialised
from tests.kernels.derivatives import KINDS, compare, normal


@pytest.fixture(autouse=True, params=[True, False], ids=["formulas", "calls"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The formulas that a compiler gets, and the calls of PyTorch's own functions."""
    monkeypatch.setattr(maxpool, "written_out", lambda _: request.param)
    return bool(request.param)


SIZES = [(4, 6), (5, 6), (4, 7), (5, 5), (2, 3)]


def pooled(x: Tensor) -> Tensor:
    return pick(x, largest(x))


def transposed(which: Tensor, height: int, width: int) -> Tensor:
    """The matrix that puts (h, w) values, flattened, to their places in (height, width)."""
    h, w = which.shape
    matrix = torch.zeros(height * width, h * w, dtype=torch.float64)
    for i, j in product(range(h), range(w)):
        down, right = divmod(int(which[i, j]), 2)
        matrix[(2 * i + down) * width + 2 * j + right, i * w + j] = 1
    return matrix


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pick(size: tuple[int, int], kind: str) -> None:
    """Of sin(x), since second derivatives of a choice alone are zero."""
    compare(
        kind,
        lambda x: pooled(x.sin()),
        lambda x: F.max_pool2d(x.sin(), 2),
        (normal(3, 2, 2, *size),),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(4, 6), (5, 7)], ids=str)
def test_put(size: tuple[int, int], kind: str, form: bool) -> None:
    small = size[0] // 2, size[1] // 2
    which = torch.randint(4, small, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    matrix = transposed(which, *size)
    if not form:
        which = matrix.argmax(0).view(small)

    def fast(g: Tensor) -> Any:
        return _Put.apply(g.sin(), which.expand_as(g), *size)  # type: ignore[no-untyped-call]

    def plain(g: Tensor) -> Tensor:
        return (g.sin().flatten(-2) @ matrix.T).view(*g.shape[:-2], *size)

    compare(kind, fast, plain, (normal(3, 2, 2, *small),))


@pytest.mark.parametrize("values", list(product((0.0, 1.0), repeat=4)), ids=str)
def test_of_equals_the_first(values: tuple[float, ...]) -> None:
    """All windows of two values: the largest's first place in reading order gets the gradient, as
    in PyTorch.
    """
    x = torch.tensor(values).view(1, 1, 2, 2)
    first = values.index(max(values))
    assert largest(x).item() == first
    slopes = grad(lambda x: pooled(x).sum())(x)
    assert slopes.flatten().tolist() == [float(i == first) for i in range(4)]
    by_pytorch = x.clone().requires_grad_()
    nn.MaxPool2d(2)(by_pytorch).sum().backward()
    assert by_pytorch.grad is not None
    assert torch.equal(slopes, by_pytorch.grad)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("image", ["constant", "steps", "negative"])
def test_values_and_gradients_to_the_bit(image: str, size: tuple[int, int]) -> None:
    """A constant image, one of few grey values (ties everywhere), and one below zero."""
    x = {
        "constant": torch.full((2, 3, *size), 0.25),
        "steps": torch.randint(
            3, (2, 3, *size), generator=torch.Generator().manual_seed(0)
        ).float(),
        "negative": -normal(2, 3, *size).abs().float() - 1,
    }[image]
    weights = normal(2, 3, size[0] // 2, size[1] // 2).float()
    theirs = x.clone().requires_grad_()
    out = nn.MaxPool2d(2)(theirs)
    (out * weights).sum().backward()
    assert theirs.grad is not None
    assert torch.equal(pooled(x), out)
    assert torch.equal(grad(lambda x: (pooled(x) * weights).sum())(x), theirs.grad)


@pytest.mark.parametrize("place", range(4))
def test_nan_is_not_hidden(place: int) -> None:
    """PyTorch's pooling gives NaN for a window that holds one, wherever it is."""
    x = torch.tensor([1.0, 3.0, 2.0, 0.0])
    x[place] = torch.nan
    assert pooled(x.view(1, 1, 2, 2)).isnan().item()
    assert F.max_pool2d(x.view(1, 1, 2, 2), 2).isnan().item()


def test_clients_apart() -> None:
    x = normal(3, 2, 2, 4, 4)
    assert torch.equal(vmap(pooled)(x), torch.stack([pooled(one) for one in x]))


# The models pool before the ReLU


@pytest.mark.parametrize("size", [(4, 6), (5, 7)], ids=str)
def test_a_pool_before_the_relu_is_one_after_it(size: tuple[int, int]) -> None:
    """max and ReLU change places, and so do their gradients: where the largest is not positive,
    both are zero.
    """
    theirs = nn.MaxPool2d(2)
    x, weights = normal(4, 3, *size), normal(4, 3, size[0] // 2, size[1] // 2, seed=1)

    def loss(x: Tensor, first: Any, second: Any) -> Tensor:
        out: Tensor = (second(first(x)) * weights).sum()
        return out

    for ours in (theirs, pooled):
        assert torch.equal(torch.relu(ours(x)), theirs(torch.relu(x)))
        slopes = grad(loss)(x, ours, torch.relu)
        assert torch.equal(slopes, grad(loss)(x, torch.relu, theirs))
        assert bool(slopes.any())


@pytest.mark.parametrize(
    ("build", "shape"), [(models.vgg, (3, 32, 32)), (models.lenet, (1, 28, 28))]
)
def test_the_papers_models_pool_after_the_relu(build: Any, shape: tuple[int, ...]) -> None:
    """As the paper draws them; ours give the same outputs and gradients."""
    ours = initialised(build, 0).double().eval()
    x = normal(2, *shape)

    def swapped() -> nn.Module:
        module = initialised(build, 0).double().eval()
        for part in module.children():
            kinds = [type(layer) for layer in part.children()]
            if nn.MaxPool2d in kinds:
                at = kinds.index(nn.MaxPool2d)
                assert kinds[at + 1] is nn.ReLU
                part[at], part[at + 1] = part[at + 1], part[at]  # type: ignore[index, operator]
        return module

    results = []
    for module in (ours, swapped()):
        out = module(x)
        results.append((out, *torch.autograd.grad(out.square().sum(), list(module.parameters()))))
    assert torch.equal(results[0][0], results[1][0])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)
