"""The LSTM kernels, interpreted, and their plain twins give what torch.nn.LSTM and its derivatives
give.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.func import jvp, vjp

import fedmix.kernels.lstm  # noqa: F401  (defines the operators)
from tests.kernels.interpreter import Interpreter

SIZES = [
    (1, 2, 3, 5),
    (3, 3, 4, 7),
    (2, 1, 1, 4),
    (1, 17, 3, 33),
    (2, 2, 2, 70),
]  # clients, batch, time, hidden


def drawn(K: int, J: int, B: int, T: int, D: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gates' inputs (with a direction, if J = 2), recurrent weights, gradient of the outputs."""
    rng = torch.Generator().manual_seed(0)
    p = torch.randn(K, J, B, T, 4 * D, generator=rng)
    return (
        p,
        torch.randn(K, 4 * D, D, generator=rng) / D**0.5,
        torch.randn(K, J, B, T, D, generator=rng),
    )


def by_pytorch(p: Tensor, w: Tensor) -> Tensor:
    """h of one client's (B, T, 4D) by nn.LSTM, whose inputs are the gates' inputs themselves."""
    D = w.shape[1]
    layer = nn.LSTM(4 * D, D, batch_first=True, bias=False, dtype=p.dtype)
    weights = {"weight_ih_l0": torch.eye(4 * D, dtype=p.dtype), "weight_hh_l0": w}
    h: Tensor = torch.func.functional_call(layer, weights, (p,))[0]
    return h


def cells(p: Tensor, w: Tensor) -> Tensor:
    """h of one client's (B, T, 4D), number by number; σ(a) and tanh(a) by exponentials."""
    D = w.shape[1]
    before = [torch.zeros(len(p), dtype=p.dtype)] * D
    state = list(before)
    rows = []
    for t in range(p.shape[1]):
        a = [p[:, t, n] + sum(w[n, m] * before[m] for m in range(D)) for n in range(4 * D)]
        gates = [
            a_n.tanh() if 2 * D <= n < 3 * D else 1 / (1 + (-a_n).exp()) for n, a_n in enumerate(a)
        ]
        state = [gates[D + n] * state[n] + gates[n] * gates[2 * D + n] for n in range(D)]
        before = [gates[3 * D + n] * state[n].tanh() for n in range(D)]
        rows.append(torch.stack(before, -1))
    return torch.stack(rows, 1)


def test_the_references_agree() -> None:
    p, w, _ = (t[0].double() for t in drawn(1, 1, 2, 3, 4))
    torch.testing.assert_close(cells(p[0], w), by_pytorch(p[0], w))


def expected(p: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """h (and its derivative) of every client, and the gradient of ⟨g, h⟩ in p, in float64."""
    found = []
    for pair, weight, slope in zip(p.double(), w.double(), g.double(), strict=True):

        def one(pair: Tensor, weight: Tensor = weight) -> Tensor:
            if len(pair) == 1:
                return by_pytorch(pair[0], weight)[None]
            return torch.stack(jvp(lambda q: cells(q, weight), (pair[0],), (pair[1],))[:2])

        if len(pair) == 1:
            pair = pair.clone().requires_grad_()
            h = one(pair)
            found.append((h.detach(), torch.autograd.grad((h * slope).sum(), pair)[0]))
        else:
            h, back = vjp(one, pair)[:2]
            found.append((h, back(slope)[0]))
    h, to_p = (torch.stack(part) for part in zip(*found, strict=True))
    return h, to_p


def close(got: Tensor, wanted: Tensor, within: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=within, atol=within)


SMALL = [s for s in SIZES if s[-1] < 10]
HOW = [
    "float32",
    "tf32",
]  # weights read in chunks, and weights that stay; the interpreter multiplies exactly either way
VALUES, PAIRS = [(K, 1, B, T, D) for K, B, T, D in SIZES], [(K, 2, B, T, D) for K, B, T, D in SMALL]


@pytest.mark.parametrize("size", VALUES + PAIRS, ids=str)
def test_twins(size: tuple[int, int, int, int, int]) -> None:
    p, w, g = drawn(*size)
    wanted, to_p = expected(p, w, g)
    h, acts, c = torch.ops.fedmix.lstm(p, w, "float32")
    close(h, wanted)
    close(torch.ops.fedmix.lstm_backward(g, acts, c, p, w, "float32"), to_p)


@pytest.mark.parametrize("size", VALUES + PAIRS, ids=str)
def test_kernels(interpreted: Interpreter, size: tuple[int, int, int, int, int]) -> None:
    p, w, g = drawn(*size)
    wanted, to_p = expected(p, w, g)
    for how in HOW:
        h, acts, c = interpreted("lstm_triton", "lstm", p, w, how)
        close(h, wanted)
        close(interpreted("lstm_triton", "lstm_backward", g, acts, c, w, how)[0], to_p)


@pytest.mark.parametrize("size", [(1, 17, 3, 33), (2, 2, 2, 70), (1, 40, 2, 5)], ids=str)
def test_pairs_of_several_blocks(interpreted: Interpreter, size: tuple[int, int, int, int]) -> None:
    """Too large for one number after another: the twin, which the small sizes check, is the
    reference, and so are its gates.
    """
    K, B, T, D = size
    p, w, g = drawn(K, 2, B, T, D)
    twin = torch.ops.fedmix.lstm(p.double(), w.double(), "float32")
    to_p = torch.ops.fedmix.lstm_backward(g.double(), *twin[1:], p.double(), w.double(), "float32")
    for how in HOW:
        found = interpreted("lstm_triton", "lstm", p, w, how)
        for got, wanted in zip(found, twin, strict=True):
            close(got, wanted)
        close(interpreted("lstm_triton", "lstm_backward", g, *found[1:], w, how)[0], to_p)


@pytest.mark.parametrize("J", [1, 2])
@pytest.mark.parametrize("how", ["tf32", "bf16"])
def test_coarser_arithmetic(interpreted: Interpreter, how: str, J: int) -> None:
    """bf16 is off by at most 2^−9 of a factor, and a gate has slope 1/4: outputs are within 2 %,
    gradients within 5 %.
    """
    p, w, g = drawn(2, J, 3, 4, 7)
    wanted, to_p = expected(p, w, g)
    h, acts, c = interpreted("lstm_triton", "lstm", p, w, how)
    close(h, wanted, 2e-2)
    close(interpreted("lstm_triton", "lstm_backward", g, acts, c, w, how)[0], to_p, 5e-2)
    if how == "bf16":
        assert float((h - wanted).abs().max()) > 1e-4  # it did round


def test_far_from_zero(interpreted: Interpreter) -> None:
    """Gates that are shut or open for good give 0 and 1, and no NaN."""
    p = torch.tensor([-300.0, -90.0, 0.0, 90.0, 300.0]).repeat_interleave(4).view(1, 1, 5, 1, 4)
    w = torch.zeros(1, 4, 1)
    h, acts, c = interpreted("lstm_triton", "lstm", p, w, "float32")
    sigma = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0])
    tanh = torch.tensor([-1.0, -1.0, 0.0, 1.0, 1.0])
    close(acts[0, 0, :, 0], torch.stack([sigma, sigma, tanh, sigma], 1))
    close(h.flatten(), sigma * torch.tanh(sigma * tanh))
    back = interpreted(
        "lstm_triton", "lstm_backward", torch.ones(1, 1, 5, 1, 1), acts, c, w, "float32"
    )[0]
    assert bool(torch.isfinite(back).all())
