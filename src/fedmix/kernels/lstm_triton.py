"""One time step of every client's LSTM as one GPU kernel: the product with the recurrent weights and all of the cell.

Tensors are (K, J, B, T, ...): J = 1 for values alone, J = 2 for values and their derivatives along a direction, which share the
weights. One program computes a block of hidden units of one client for a block of samples.
"""

# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmix.kernels.conv_triton import load, precision


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def _forward(
    p_ptr, w_ptr, h_ptr, acts_ptr, c_ptr, t,
    J: tl.constexpr, B: tl.constexpr, T: tl.constexpr, D: tl.constexpr, LOW: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    b, n, k = tl.program_id(2) * BR + tl.arange(0, BR), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    row = ((client * J * B + b) * T + t)[:, None]  # of the values; those of the derivatives lie B·T rows further
    held = (b < B)[:, None] & (n < D)[None, :]
    at4, at1 = row * (4 * D) + n[None, :], row * D + n[None, :]
    i, f = tl.load(p_ptr + at4, mask=held, other=0.0), tl.load(p_ptr + at4 + D, mask=held, other=0.0)
    g, o = tl.load(p_ptr + at4 + 2 * D, mask=held, other=0.0), tl.load(p_ptr + at4 + 3 * D, mask=held, other=0.0)
    if J == 2:
        q4, q1 = at4 + B * T * 4 * D, at1 + B * T * D
        di, df = tl.load(p_ptr + q4, mask=held, other=0.0), tl.load(p_ptr + q4 + D, mask=held, other=0.0)
        dg, do = tl.load(p_ptr + q4 + 2 * D, mask=held, other=0.0), tl.load(p_ptr + q4 + 3 * D, mask=held, other=0.0)
    c = tl.zeros((BR, BN), tl.float32)
    dc = tl.zeros((BR, BN), tl.float32)
    if t > 0:
        w_ptr += client * (4 * D * D)
        for first in range(0, D, BK):
            inner = first + k
            w_at = n[:, None] * D + inner[None, :]
            inside = (n < D)[:, None] & (inner < D)[None, :]
            wi, wf = load(w_ptr + w_at, inside, LOW), load(w_ptr + w_at + D * D, inside, LOW)
            wg, wo = load(w_ptr + w_at + 2 * D * D, inside, LOW), load(w_ptr + w_at + 3 * D * D, inside, LOW)
            mask = (b < B)[:, None] & (inner < D)[None, :]
            h = load(h_ptr + (row - 1) * D + inner[None, :], mask, LOW)
            i, f = tl.dot(h, tl.trans(wi), i, input_precision=PRECISION), tl.dot(h, tl.trans(wf), f, input_precision=PRECISION)
            g, o = tl.dot(h, tl.trans(wg), g, input_precision=PRECISION), tl.dot(h, tl.trans(wo), o, input_precision=PRECISION)
            if J == 2:
                dh = load(h_ptr + B * T * D + (row - 1) * D + inner[None, :], mask, LOW)
                di = tl.dot(dh, tl.trans(wi), di, input_precision=PRECISION)
                df = tl.dot(dh, tl.trans(wf), df, input_precision=PRECISION)
                dg = tl.dot(dh, tl.trans(wg), dg, input_precision=PRECISION)
                do = tl.dot(dh, tl.trans(wo), do, input_precision=PRECISION)
        c = tl.load(c_ptr + at1 - D, mask=held, other=0.0)
        if J == 2:
            dc = tl.load(c_ptr + q1 - D, mask=held, other=0.0)
    i, f, g, o = _sigmoid(i), _sigmoid(f), _tanh(g), _sigmoid(o)
    if J == 2:
        tl.store(acts_ptr + q4, di, mask=held)
        tl.store(acts_ptr + q4 + D, df, mask=held)
        tl.store(acts_ptr + q4 + 2 * D, dg, mask=held)
        tl.store(acts_ptr + q4 + 3 * D, do, mask=held)
        dc = f * (1 - f) * df * c + f * dc + i * (1 - i) * di * g + i * (1 - g * g) * dg
    c = f * c + i * g
    s = _tanh(c)
    if J == 2:
        tl.store(c_ptr + q1, dc, mask=held)
        tl.store(h_ptr + q1, o * (1 - o) * do * s + o * (1 - s * s) * dc, mask=held)
    tl.store(acts_ptr + at4, i, mask=held)
    tl.store(acts_ptr + at4 + D, f, mask=held)
    tl.store(acts_ptr + at4 + 2 * D, g, mask=held)
    tl.store(acts_ptr + at4 + 3 * D, o, mask=held)
    tl.store(c_ptr + at1, c, mask=held)
    tl.store(h_ptr + at1, o * s, mask=held)


@triton.jit
def _backward(
    gh_ptr, acts_ptr, c_ptr, w_ptr, a_ptr, carry_ptr, t,
    J: tl.constexpr, B: tl.constexpr, T: tl.constexpr, D: tl.constexpr, LOW: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradients (ending in _) of the four gates before their functions, from those of h and of what follows in time."""
    client = tl.program_id(1).to(tl.int64)
    b, n, k = tl.program_id(2) * BR + tl.arange(0, BR), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    row = ((client * J * B + b) * T + t)[:, None]
    held = (b < B)[:, None] & (n < D)[None, :]
    at4, at1 = row * (4 * D) + n[None, :], row * D + n[None, :]
    q4, q1 = at4 + B * T * 4 * D, at1 + B * T * D
    kept = ((client * J * B + b) * D)[:, None] + n[None, :]  # of the carry, one row a sample
    h_ = tl.load(gh_ptr + at1, mask=held, other=0.0)
    c_ = tl.zeros((BR, BN), tl.float32)
    dh_ = tl.zeros((BR, BN), tl.float32)
    dc_ = tl.zeros((BR, BN), tl.float32)
    if J == 2:
        dh_ = tl.load(gh_ptr + q1, mask=held, other=0.0)
    if t + 1 < T:
        w_ptr += client * (4 * D * D)
        for first in range(0, 4 * D, BK):
            inner = first + k
            w = load(w_ptr + inner[:, None] * D + n[None, :], (inner < 4 * D)[:, None] & (n < D)[None, :], LOW)
            mask = (b < B)[:, None] & (inner < 4 * D)[None, :]
            later = load(a_ptr + (row + 1) * (4 * D) + inner[None, :], mask, LOW)
            h_ = tl.dot(later, w, h_, input_precision=PRECISION)
            if J == 2:
                later = load(a_ptr + B * T * 4 * D + (row + 1) * (4 * D) + inner[None, :], mask, LOW)
                dh_ = tl.dot(later, w, dh_, input_precision=PRECISION)
        c_ = tl.load(carry_ptr + kept, mask=held, other=0.0)
        if J == 2:
            dc_ = tl.load(carry_ptr + B * D + kept, mask=held, other=0.0)
    i, f = tl.load(acts_ptr + at4, mask=held, other=0.0), tl.load(acts_ptr + at4 + D, mask=held, other=0.0)
    g, o = tl.load(acts_ptr + at4 + 2 * D, mask=held, other=0.0), tl.load(acts_ptr + at4 + 3 * D, mask=held, other=0.0)
    s = _tanh(tl.load(c_ptr + at1, mask=held, other=0.0))
    before = tl.load(c_ptr + at1 - D, mask=held & (t > 0), other=0.0)
    o_ = h_ * s
    s_ = h_ * o
    if J == 2:
        di, df = tl.load(acts_ptr + q4, mask=held, other=0.0), tl.load(acts_ptr + q4 + D, mask=held, other=0.0)
        dg, do = tl.load(acts_ptr + q4 + 2 * D, mask=held, other=0.0), tl.load(acts_ptr + q4 + 3 * D, mask=held, other=0.0)
        dc = tl.load(c_ptr + q1, mask=held, other=0.0)
        dbefore = tl.load(c_ptr + q1 - D, mask=held & (t > 0), other=0.0)
        o_ += dh_ * ((1 - 2 * o) * do * s + (1 - s * s) * dc)
        s_ += dh_ * (o * (1 - o) * do - 2 * s * o * dc)
        dc_ += dh_ * o * (1 - s * s)
    c_ += s_ * (1 - s * s)
    i_, f_, g_ = c_ * g, c_ * before, c_ * i
    back = c_ * f
    if J == 2:
        i_ += dc_ * ((1 - 2 * i) * di * g + (1 - g * g) * dg)
        f_ += dc_ * ((1 - 2 * f) * df * before + dbefore)
        g_ += dc_ * (i * (1 - i) * di - 2 * g * i * dg)
        back += dc_ * f * (1 - f) * df
        tl.store(a_ptr + q4, dc_ * g * i * (1 - i), mask=held)
        tl.store(a_ptr + q4 + D, dc_ * before * f * (1 - f), mask=held)
        tl.store(a_ptr + q4 + 2 * D, dc_ * i * (1 - g * g), mask=held)
        tl.store(a_ptr + q4 + 3 * D, dh_ * s * o * (1 - o), mask=held)
        tl.store(carry_ptr + B * D + kept, dc_ * f, mask=held)
    tl.store(a_ptr + at4, i_ * i * (1 - i), mask=held)
    tl.store(a_ptr + at4 + D, f_ * f * (1 - f), mask=held)
    tl.store(a_ptr + at4 + 2 * D, g_ * (1 - g * g), mask=held)
    tl.store(a_ptr + at4 + 3 * D, o_ * o * (1 - o), mask=held)
    tl.store(carry_ptr + kept, back, mask=held)


# What was fastest on an H200 for 15 clients of the paper's model (benchmarks/lstm_tiles.py).
FORWARD = {"BN": 32, "BK": 64, "num_warps": 4, "num_stages": 3}
BACKWARD = {"BN": 32, "BK": 128, "num_warps": 4, "num_stages": 3}


def _rows(B: int) -> int:
    """Samples of one program; with more, its tiles would not fit."""
    return max(16, min(32, triton.next_power_of_2(B)))


def lstm(p: Tensor, w: Tensor, how: str, **tile: int) -> tuple[Tensor, Tensor, Tensor]:
    p, w = p.contiguous(), w.contiguous()
    K, J, B, T, D = *p.shape[:4], p.shape[4] // 4
    h, c, acts = p.new_empty(K, J, B, T, D), p.new_empty(K, J, B, T, D), torch.empty_like(p)
    tile = FORWARD | tile
    for t in range(T):
        _forward[(triton.cdiv(D, tile["BN"]), K, triton.cdiv(B, _rows(B)))](
            p, w, h, acts, c, t, J=J, B=B, T=T, D=D, BR=_rows(B), **precision(how), **tile
        )
    return h, acts, c


def lstm_backward(gh: Tensor, acts: Tensor, c: Tensor, w: Tensor, how: str, **tile: int) -> Tensor:
    gh, w = gh.contiguous(), w.contiguous()
    K, J, B, T, D = gh.shape
    a, carry = torch.empty_like(acts), gh.new_empty(K, J, B, D)
    tile = BACKWARD | tile
    for t in reversed(range(T)):
        _backward[(triton.cdiv(D, tile["BN"]), K, triton.cdiv(B, _rows(B)))](
            gh, acts, c, w, a, carry, t, J=J, B=B, T=T, D=D, BR=_rows(B), **precision(how), **tile
        )
    return a
