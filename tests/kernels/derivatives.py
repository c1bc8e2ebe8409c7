"""Every kind of derivative that the engines take of a layer, of several clients at once: what a
fast form is compared by.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.utils._pytree import tree_leaves

Args: TypeAlias = tuple[Tensor, ...]
Function: TypeAlias = Callable[..., Any]


def _bent(tree: Any) -> Tensor:
    """A number that depends on all of a tree, with derivatives of every order."""
    return torch.stack([torch.sin(leaf + 0.3).sum() for leaf in tree_leaves(tree)]).sum()


def _gradient(f: Function) -> Function:
    def of(*args: Tensor) -> Any:
        return grad(lambda *a: _bent(f(*a)), tuple(range(len(args))))(*args)

    return of


def _along(f: Function, args: Args, directions: Args) -> Any:
    return jvp(f, args, directions)[1]


def value(f: Function, args: Args, _: Args) -> Any:
    return vmap(f)(*args)


def gradient(f: Function, args: Args, _: Args) -> Any:
    return vmap(_gradient(f))(*args)


def gradient_of_gradient(f: Function, args: Args, _: Args) -> Any:
    return vmap(_gradient(_gradient(f)))(*args)


def derivative(f: Function, args: Args, directions: Args) -> Any:
    return vmap(lambda a, d: _along(f, a, d))(args, directions)


def derivative_in_each(f: Function, args: Args, directions: Args) -> Any:
    """One argument moves and the others stay."""

    def of(a: Args, d: Args, i: int) -> Any:
        return _along(lambda moved: f(*a[:i], moved, *a[i + 1 :]), (a[i],), (d[i],))

    return [vmap(lambda a, d, i=i: of(a, d, i))(args, directions) for i in range(len(args))]


def gradient_of_derivative(f: Function, args: Args, directions: Args) -> Any:
    return vmap(lambda a, d: _gradient(lambda *b: _along(f, b, d))(*a))(args, directions)


def derivative_of_gradient(f: Function, args: Args, directions: Args) -> Any:
    return vmap(lambda a, d: _along(_gradient(f), a, d))(args, directions)


def of_one_client(f: Function, args: Args, directions: Args) -> Any:
    """Without vmap, as the engine takes the step of a client alone."""
    one, way = tuple(a[0] for a in args), tuple(d[0] for d in directions)
    return (
        f(*one),
        _gradient(f)(*one),
        _along(f, one, way),
        _gradient(lambda *b: _along(f, b, way))(*one),
    )


KINDS = {
    kind.__name__: kind
    for kind in (
        value,
        gradient,
        gradient_of_gradient,
        derivative,
        derivative_in_each,
        gradient_of_derivative,
        derivative_of_gradient,
        of_one_client,
    )
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compare(kind: str, fast: Function, plain: Function, args: Args) -> None:
    """Both give the same, of clients stacked in `args`, in float64."""
    directions = tuple(normal(*a.shape, seed=7 + i) for i, a in enumerate(args))
    got, wanted = (KINDS[kind](f, args, directions) for f in (fast, plain))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    assert any(bool(leaf.any()) for leaf in tree_leaves(wanted))
