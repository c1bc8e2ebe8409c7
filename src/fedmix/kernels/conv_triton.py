"""Convolutions of many clients as implicit matrix products in Triton.

No window is unfolded in memory. All tensors are channels-last: images (K, B, H, W, C), filters (K,
O, R, S, C). One program computes one tile of one client's result.

Hopper's tensor cores take 32-bit factors only if both have the summed index last in memory. In the
forward product they have (channels). For the gradient of the images the filters are transposed
first; for that of the filters, which sums over pixels, both factors are. Copies are cheap compared
to a product at half its speed. Factors of 16 bits are read as they are.
"""

# mypy: disable-error-code="no-untyped-def, misc, type-arg, untyped-decorator, no-untyped-call"

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmix.kernels.sizes import BLOCK, MANY, SUMMED, bias_parts, copied


@triton.jit
def _conv(
    x_ptr, w_ptr, b_ptr, y_ptr, SHIFTED: tl.constexpr,
    M: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, O: tl.constexpr,
    S: tl.constexpr, TAPS: tl.constexpr, pad: tl.constexpr, TURNED: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[m, o] = Σ_{tap, c} x[pixel m shifted by tap, c] · w[o, tap, c], of BM pixels, BN channels.

    b[o] is added for m < SHIFTED. If TURNED, w[c, last tap − tap, o] is used, which propagates a
    gradient back.
    """
    client = tl.program_id(2).to(tl.int64)
    x_ptr += client * (M // (OH * OW) * H * W * C)
    w_ptr += client * (O * TAPS * C) + ((TAPS - 1) * O if TURNED else 0)
    NEXT_O: tl.constexpr = 1 if TURNED else TAPS * C
    NEXT_TAP: tl.constexpr = -O if TURNED else C
    NEXT_C: tl.constexpr = TAPS * O if TURNED else 1
    y_ptr += client * (M * O)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    image, row, column = m // (OH * OW), m // OW % OH, m % OW
    acc = tl.zeros((BM, BN), tl.float32)
    if C % BK == 0:  # a block of channels stays inside one tap
        for step in range(TAPS * (C // BK)):
            tap = step // (C // BK)
            c = step % (C // BK) * BK + tl.arange(0, BK)
            i, j = row + tap // S - pad, column + tap % S - pad
            inside = (m < M) & (i >= 0) & (i < H) & (j >= 0) & (j < W)
            a = tl.load(
                x_ptr + (((image * H + i) * W + j) * C)[:, None] + c[None, :],
                mask=inside[:, None],
                other=0.0,
            )
            b = tl.load(
                w_ptr + (o * NEXT_O + tap * NEXT_TAP)[:, None] + (c * NEXT_C)[None, :],
                mask=(o < O)[:, None],
                other=0.0,
            )
            acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    else:
        for first in range(0, TAPS * C, BK):
            k = first + tl.arange(0, BK)
            tap, c = k // C, k % C
            i, j = row[:, None] + tap[None, :] // S - pad, column[:, None] + tap[None, :] % S - pad
            inside = (
                (m < M)[:, None] & (k < TAPS * C)[None, :] & (i >= 0) & (i < H) & (j >= 0) & (j < W)
            )
            a = tl.load(
                x_ptr + ((image[:, None] * H + i) * W + j) * C + c[None, :], mask=inside, other=0.0
            )
            at = tap * NEXT_TAP + c * NEXT_C if TURNED else k
            held = (o < O)[:, None] & (k < TAPS * C)[None, :]
            b = tl.load(w_ptr + (o * NEXT_O)[:, None] + at[None, :], mask=held, other=0.0)
            acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    if SHIFTED:
        b = tl.load(b_ptr + client * O + o, mask=o < O, other=0.0)
        acc += tl.where((m < SHIFTED)[:, None], b[None, :], 0.0)
    tl.store(y_ptr + m[:, None] * O + o[None, :], acc, mask=(m < M)[:, None] & (o < O)[None, :])


@triton.jit
def _turn(w_ptr, out_ptr, O, C, TAPS, BO: tl.constexpr, BC: tl.constexpr):
    """out[c, last tap − tap, o] = w[o, tap, c]: the filters that propagate a gradient back."""
    tap, client = tl.program_id(2) % TAPS, (tl.program_id(2) // TAPS).to(tl.int64)
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    start = client * (O * TAPS * C)
    held = (o < O)[:, None] & (c < C)[None, :]
    w = tl.load(w_ptr + start + o[:, None] * (TAPS * C) + tap * C + c[None, :], mask=held)
    to = out_ptr + start + c[:, None] * (TAPS * O) + (TAPS - 1 - tap) * O + o[None, :]
    tl.store(to, tl.trans(w), mask=(c < C)[:, None] & (o < O)[None, :])


@triton.jit
def _planes(
    x_ptr,
    out_ptr,
    sum_ptr,
    B,
    H,
    W,
    C,
    OW,
    S,
    pad,
    SUMMED,
    SUM: tl.constexpr,
    BP: tl.constexpr,
    BC: tl.constexpr,
):
    """out[s, c, image, i, j] = x[image, i, j + s − pad, c]: channels first, once per shift s.

    s is the horizontal shift of the filter. If SUM, sum[block, c] is the sum over each block of
    pixels, of those among the first SUMMED.
    """
    s, client = tl.program_id(2) % S, (tl.program_id(2) // S).to(tl.int64)
    pixels = B * H * OW
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    line, j = p // OW, p % OW + s - pad
    inside = (p < pixels) & (j >= 0) & (j < W)
    x = tl.load(x_ptr + client * (B * H * W * C) + ((line * W + j) * C)[:, None] + c[None, :],
                mask=inside[:, None] & (c < C)[None, :], other=0.0)  # fmt: skip
    to = out_ptr + (client * S + s) * (C * pixels) + c[:, None] * pixels + p[None, :]
    tl.store(to, tl.trans(x), mask=(c < C)[:, None] & (p < pixels)[None, :])
    if SUM:
        total = tl.sum(tl.where((p < SUMMED)[:, None], x, 0.0), 0)
        tl.store(
            sum_ptr + (client * tl.num_programs(0) + tl.program_id(0)) * C + c, total, mask=c < C
        )


@triton.jit
def _sums(g_ptr, out_ptr, M, O, SUMMED, BM: tl.constexpr, BO: tl.constexpr):
    """out[block, o] = Σ_m g[m, o] over a block of the first SUMMED pixels."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    g = tl.load(
        g_ptr + client * M * O + m[:, None] * O + o[None, :],
        mask=(m < SUMMED)[:, None] & (o < O)[None, :],
        other=0.0,
    )
    total = tl.sum(g.to(tl.float32), 0)
    tl.store(out_ptr + (client * tl.num_programs(0) + tl.program_id(0)) * O + o, total, mask=o < O)


@triton.jit
def _conv_weight_as_is(
    g_ptr, x_ptr, out_ptr, PARTS: tl.constexpr,
    M: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, O: tl.constexpr,
    S: tl.constexpr, TAPS: tl.constexpr, pad: tl.constexpr, PRECISION: tl.constexpr,
    BO: tl.constexpr, BJ: tl.constexpr, BM: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """out[part, o, j] = Σ_m g[m, o] · x[pixel m shifted by tap, c] over a part of the pixels.

    j stands for (tap, c).
    """
    client, part = (tl.program_id(2) // PARTS).to(tl.int64), tl.program_id(2) % PARTS
    g_ptr += client * (M * O)
    x_ptr += client * (M // (OH * OW) * H * W * C)
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    j = tl.program_id(1) * BJ + tl.arange(0, BJ)
    acc = tl.zeros((BO, BJ), tl.float32)
    for block in range(BLOCKS):
        m = (part * BLOCKS + block) * BM + tl.arange(0, BM)
        image, row, column = m // (OH * OW), m // OW % OH, m % OW
        g = tl.load(
            g_ptr + m[:, None] * O + o[None, :], mask=(m < M)[:, None] & (o < O)[None, :], other=0.0
        )
        if C % BJ == 0:  # a tile stays inside one tap
            tap = tl.program_id(1) // (C // BJ)
            i, k = row + tap // S - pad, column + tap % S - pad
            inside = (m < M) & (i >= 0) & (i < H) & (k >= 0) & (k < W)
            at = (((image * H + i) * W + k) * C)[:, None] + (j - tap * C)[None, :]
            x = tl.load(x_ptr + at, mask=inside[:, None], other=0.0)
        else:
            i, k = (
                row[:, None] + (j // C // S - pad)[None, :],
                column[:, None] + (j // C % S - pad)[None, :],
            )
            inside = (
                (m < M)[:, None] & (j < TAPS * C)[None, :] & (i >= 0) & (i < H) & (k >= 0) & (k < W)
            )
            x = tl.load(
                x_ptr + ((image[:, None] * H + i) * W + k) * C + (j % C)[None, :],
                mask=inside,
                other=0.0,
            )
        acc = tl.dot(tl.trans(g), x, acc, input_precision=PRECISION)
    out_ptr += (client * PARTS + part) * (O * TAPS * C)
    tl.store(
        out_ptr + o[:, None] * (TAPS * C) + j[None, :],
        acc,
        mask=(o < O)[:, None] & (j < TAPS * C)[None, :],
    )


@triton.jit
def _conv_weight(
    g_ptr, x_ptr, out_ptr, PARTS: tl.constexpr,
    B: tl.constexpr, H: tl.constexpr, C: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, O: tl.constexpr,
    S: tl.constexpr, TAPS: tl.constexpr, pad: tl.constexpr, PRECISION: tl.constexpr,
    BO: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The same from transposed copies: Σ_m g[o, m] · x[shift s, c, pixel m shifted down by r]."""
    M: tl.constexpr = B * OH * OW
    client, part = (tl.program_id(2) // PARTS).to(tl.int64), tl.program_id(2) % PARTS
    tap = tl.program_id(1) % TAPS
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    c = tl.program_id(1) // TAPS * BC + tl.arange(0, BC)
    g_ptr += client * (O * M)
    x_ptr += (client * S + tap % S) * (C * B * H * OW)
    acc = tl.zeros((BO, BC), tl.float32)
    for block in range(BLOCKS):
        m = (part * BLOCKS + block) * BM + tl.arange(0, BM)
        i = m // OW % OH + tap // S - pad
        at = m // (OH * OW) * (H * OW) + i * OW + m % OW
        here = (m < M) & (i >= 0) & (i < H)
        g = tl.load(
            g_ptr + o[:, None] * M + m[None, :], mask=(o < O)[:, None] & (m < M)[None, :], other=0.0
        )
        x = tl.load(
            x_ptr + c[:, None] * (B * H * OW) + at[None, :],
            mask=(c < C)[:, None] & here[None, :],
            other=0.0,
        )
        acc = tl.dot(g, tl.trans(x), acc, input_precision=PRECISION)
    out_ptr += (client * PARTS + part) * (O * TAPS * C)
    tl.store(
        out_ptr + (o * (TAPS * C) + tap * C)[:, None] + c[None, :],
        acc,
        mask=(o < O)[:, None] & (c < C)[None, :],
    )


def precision(how: str) -> str:
    """Triton's name of the precision in which 32-bit factors are multiplied."""
    return "ieee" if how == "float32" else "tf32"


def _power(n: int, least: int, most: int) -> int:
    return max(least, min(most, triton.next_power_of_2(n)))


def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    shifted: int,
    pad: int,
    how: str = "tf32",
    turned: bool = False,
    **tile: int,
) -> Tensor:
    """y[k, b, i, j, o] = Σ x[k, b, i + r − pad, j + s − pad, c] · w[k, o, r, s, c].

    b[k, o] is added to the first `shifted` images. If `turned`, w[k, c, R − 1 − r, S − 1 − s, o]
    replaces w[k, o, r, s, c]. `tile` overrides sizes of `tiles`.
    """
    x, w = x.contiguous(), w.contiguous()
    K, B, H, W, C = x.shape
    R, S = w.shape[2:4]
    O = w.shape[4 if turned else 1]
    OH, OW = H + 2 * pad - R + 1, W + 2 * pad - S + 1
    y = x.new_empty(K, B, OH, OW, O)
    M = B * OH * OW
    t = tiles(M, O, C, x.itemsize) | tile
    grid = (triton.cdiv(M, t["BM"]), triton.cdiv(O, t["BN"]), K)
    sizes = {
        "M": M,
        "H": H,
        "W": W,
        "C": C,
        "OH": OH,
        "OW": OW,
        "O": O,
        "S": S,
        "TAPS": R * S,
        "pad": pad,
    }
    bias, first = x if b is None else b.contiguous(), shifted * OH * OW
    _conv[grid](x, w, bias, y, SHIFTED=first, **sizes, TURNED=turned, PRECISION=precision(how), **t)
    return y


def conv_input(g: Tensor, w: Tensor, pad: int, how: str = "tf32", **tile: int) -> Tensor:
    """The gradient of `conv` in x, from that in y: a convolution with rotated filters."""
    w = w.contiguous()
    K, O, R, S, C = w.shape
    if w.itemsize == 2:
        return conv(g, w, None, 0, R - 1 - pad, how, True, **tile)
    turned = torch.empty(K, C, R, S, O, device=w.device)
    BO, BC = _power(O, 16, 64), _power(C, 16, 64)
    _turn[(triton.cdiv(O, BO), triton.cdiv(C, BC), K * R * S)](w, turned, O, C, R * S, BO=BO, BC=BC)
    return conv(g, turned, None, 0, R - 1 - pad, how, False, **tile)


def _as_planes(
    x: Tensor, pad: int, shifts: int, sums: Tensor | None = None, summed: int = 0
) -> Tensor:
    K, B, H, W, C = x.shape
    OW = W + 2 * pad - shifts + 1
    out = torch.empty(K, shifts, C, B, H, OW, device=x.device)
    BC = _power(C, 4, 64)
    grid = (triton.cdiv(B * H * OW, BLOCK), triton.cdiv(C, BC), K * shifts)
    wanted = sums is not None
    _planes[grid](
        x,
        out,
        sums if wanted else out,
        B,
        H,
        W,
        C,
        OW,
        shifts,
        pad,
        summed,
        SUM=wanted,
        BP=BLOCK,
        BC=BC,
    )
    return out


def conv_weight(
    g: Tensor, x: Tensor, shifted: int, pad: int, parts: int, how: str = "tf32", **tile: int
) -> tuple[Tensor, Tensor]:
    """The gradients of `conv` in w and b, from that in y, each as parts to be summed."""
    g, x = g.contiguous(), x.contiguous()
    K, B, H, W, C = x.shape
    OH, OW, O = g.shape[2:]
    R, S = H + 2 * pad - OH + 1, W + 2 * pad - OW + 1
    M = B * OH * OW
    copies = copied(C, x.itemsize)
    t = (weight_tiles(O, C) if copies else as_is_tiles(O, C, R * S, x.itemsize)) | tile
    blocks = triton.cdiv(triton.cdiv(M, parts), t["BM"])
    out = torch.empty(K, parts, O, R, S, C, device=x.device)
    of_b = torch.empty(K, bias_parts(M, C, x.itemsize), O, device=x.device)
    sizes = {
        "H": H,
        "C": C,
        "OH": OH,
        "OW": OW,
        "O": O,
        "S": S,
        "TAPS": R * S,
        "pad": pad,
        "BLOCKS": blocks,
        "PARTS": parts,
    }
    summed = shifted * OH * OW
    if copies:
        grid = (triton.cdiv(O, t["BO"]), triton.cdiv(C, t["BC"]) * R * S, K * parts)
        planes = _as_planes(g, 0, 1, of_b, summed), _as_planes(x, pad, S)
        _conv_weight[grid](*planes, out, B=B, **sizes, PRECISION=precision(how), **t)
    else:
        grid = (triton.cdiv(O, t["BO"]), triton.cdiv(R * S * C, t["BJ"]), K * parts)
        _conv_weight_as_is[grid](g, x, out, M=M, W=W, **sizes, PRECISION=precision(how), **t)
        BO = _power(O, 16, 32)
        _sums[(of_b.shape[1], triton.cdiv(O, BO), K)](g, of_b, M, O, summed, BM=SUMMED, BO=BO)
    return out, of_b


def tiles(pixels: int, outputs: int, channels: int, itemsize: int) -> dict[str, int]:
    """Tile sizes of `conv`: the fastest on an H200 for the paper's VGG with tf32.

    Measured by benchmarks/tiles.py.
    """
    BN = _power(outputs, 16, 128)
    # programs of one client with the larger tile; it is avoided if they are too few, or leave a
    # last wave with few of them
    large = triton.cdiv(pixels, 128) * triton.cdiv(outputs, 128)
    BM = 64 if BN == 128 and (large < 8 or 16 <= large < 32) else 128
    BK = 64 if itemsize == 2 and channels % 64 == 0 else 32
    return {
        "BM": BM,
        "BN": BN,
        "BK": BK,
        "num_warps": 8 if BM * BN > 64 * 128 else 4,
        "num_stages": 3,
    }


def weight_tiles(outputs: int, channels: int) -> dict[str, int]:
    """Tile sizes of `conv_weight` with copies."""
    BO, BC = _power(outputs, 16, 128), _power(channels, 16, 128)
    return {
        "BO": BO,
        "BC": BC,
        "BM": 32,
        "num_warps": 8 if BO * BC > 128 * 64 else 4,
        "num_stages": 3,
    }


def as_is_tiles(outputs: int, channels: int, taps: int, itemsize: int) -> dict[str, int]:
    """Tile sizes of `conv_weight` without copies; with many channels a tile covers one tap."""
    low = itemsize == 2
    BO, BJ = (
        _power(outputs, 16, 128 if low else 32),
        _power(channels if channels >= MANY else channels * taps, 16, 128),
    )
    return {
        "BO": BO,
        "BJ": BJ,
        "BM": 64 if low else 32,
        "num_warps": 8 if BO * BJ > 128 * 64 else 4,
        "num_stages": 3,
    }
