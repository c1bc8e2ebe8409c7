"""The LSTMs of all clients over a whole sequence as one persistent Triton kernel.

Tensors are (K, J, B, T, ...): J = 1 for values alone, J = 2 for values and their derivatives along
a direction, which share the weights.

One program computes a block of hidden units of one client for a block of samples. It keeps the
units' recurrent weights in shared memory and their state in registers, from the first time step to
the last. Forward, it multiplies its weights with all units' h of the previous step. Backward, it
multiplies its own units' gradients, and the programs add up each other's products. So the programs
of one client and block of samples (a team) synchronise once per time step, at a counter in memory.
All of them must run at the same time; clients beyond that get a launch of their own.
"""

# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator"

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmix.kernels.conv_triton import precision


@triton.jit
def load(pointer, mask, LOW: tl.constexpr):
    value = tl.load(pointer, mask=mask, other=0.0)
    return value.to(tl.bfloat16) if LOW else value


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.exp(-2 * x)) - 1


@triton.jit
def _arrive(counter):
    """Count this program as arrived, after everything that it has stored so far."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def _await(counter, arrivals):
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < arrivals:
        pass


@triton.jit
def _parts(x):
    """Split (..., 2, 2) into its four parts, in order."""
    even, odd = tl.split(x)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _whole(first, second, third, fourth):
    return tl.join(tl.join(first, third), tl.join(second, fourth))


@triton.jit(do_not_specialize=["start"])
def _forward(
    p_ptr, w_ptr, h_ptr, acts_ptr, c_ptr, count_ptr, start,
    FIRST: tl.constexpr, LAST: tl.constexpr,
    J: tl.constexpr, B: tl.constexpr, T: tl.constexpr, D: tl.constexpr, LOW: tl.constexpr,
    PRECISION: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    CHUNK: tl.constexpr, STAY: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Time steps FIRST to LAST.

    Products have a row for every gate of every unit, and a column for every j of every sample.
    """
    blocks: tl.constexpr = (D + BN - 1) // BN
    team = start + tl.program_id(1)
    count_ptr += team * 32  # counters are a cache line apart
    client, sample = (team // tl.cdiv(B, BR)).to(tl.int64), team % tl.cdiv(B, BR) * BR
    b, n = sample + tl.arange(0, BR), tl.program_id(0) * BN + tl.arange(0, BN)
    held = (b < B)[:, None] & (n < D)[None, :]
    # rows of the values; those of the derivatives are B·T rows further
    row = ((client * J * B + b) * T)[:, None]
    at4, at1 = row * (4 * D) + n[None, :], row * D + n[None, :]
    k, column, gate = tl.arange(0, CHUNK), tl.arange(0, J * BR), tl.arange(0, 4 * BN)
    unit, of = tl.program_id(0) * BN + gate // 4, sample + column // J
    w_at = client * (4 * D * D) + (gate % 4 * D + unit)[:, None] * D + k[None, :]
    h_at = (((client * J + column % J) * B + of) * T)[:, None] * D + k[None, :]
    if STAY:
        w = load(w_ptr + w_at, (unit < D)[:, None] & (k < D)[None, :], LOW)
    c = tl.load(c_ptr + at1 + (FIRST - 1) * D, mask=held & (FIRST > 0), other=0.0)
    if J == 2:
        dc = tl.load(c_ptr + B * T * D + at1 + (FIRST - 1) * D, mask=held & (FIRST > 0), other=0.0)
    for t in range(FIRST, LAST):
        here4, here1 = at4 + t * (4 * D), at1 + t * D
        pi, pf = (
            tl.load(p_ptr + here4, mask=held, other=0.0),
            tl.load(p_ptr + here4 + D, mask=held, other=0.0),
        )
        pg, po = (
            tl.load(p_ptr + here4 + 2 * D, mask=held, other=0.0),
            tl.load(p_ptr + here4 + 3 * D, mask=held, other=0.0),
        )
        if J == 2:
            there4, there1 = here4 + B * T * 4 * D, here1 + B * T * D
            qi, qf = (
                tl.load(p_ptr + there4, mask=held, other=0.0),
                tl.load(p_ptr + there4 + D, mask=held, other=0.0),
            )
            qg, qo = (
                tl.load(p_ptr + there4 + 2 * D, mask=held, other=0.0),
                tl.load(p_ptr + there4 + 3 * D, mask=held, other=0.0),
            )
        if not ALONE:
            _await(count_ptr, t * blocks)
        before = h_ptr + h_at + (t - 1) * D
        known = (of < B)[:, None] & (t > 0)
        if STAY:
            h = tl.load(before, mask=known & (k < D)[None, :], other=0.0, cache_modifier=".cg").to(
                w.dtype
            )
            a = tl.dot(w, tl.trans(h), input_precision=PRECISION)
        else:
            a = tl.zeros((4 * BN, J * BR), tl.float32)
            for far in range(0, D, CHUNK):
                inside = (far + k < D)[None, :]
                w = load(w_ptr + w_at + far, (unit < D)[:, None] & inside, LOW)
                h = tl.load(before + far, mask=known & inside, other=0.0, cache_modifier=".cg").to(
                    w.dtype
                )
                a = tl.dot(w, tl.trans(h), a, input_precision=PRECISION)
        a = tl.trans(a)
        if J == 2:
            a, da = tl.split(tl.permute(tl.reshape(a, (BR, 2, BN, 2, 2)), (0, 2, 3, 4, 1)))
            di, df, dg, do = _parts(da)
            di, df, dg, do = di + qi, df + qf, dg + qg, do + qo
        i, f, g, o = _parts(tl.reshape(a, (BR, BN, 2, 2)))
        i, f, g, o = _sigmoid(i + pi), _sigmoid(f + pf), _tanh(g + pg), _sigmoid(o + po)
        if J == 2:
            dc = f * (1 - f) * df * c + f * dc + i * (1 - i) * di * g + i * (1 - g * g) * dg
        c = f * c + i * g
        s = _tanh(c)
        tl.store(h_ptr + here1, o * s, mask=held)
        if J == 2:
            tl.store(h_ptr + there1, o * (1 - o) * do * s + o * (1 - s * s) * dc, mask=held)
        if not ALONE:
            _arrive(count_ptr)
        tl.store(acts_ptr + here4, i, mask=held)
        tl.store(acts_ptr + here4 + D, f, mask=held)
        tl.store(acts_ptr + here4 + 2 * D, g, mask=held)
        tl.store(acts_ptr + here4 + 3 * D, o, mask=held)
        tl.store(c_ptr + here1, c, mask=held)
        if J == 2:
            tl.store(acts_ptr + there4, di, mask=held)
            tl.store(acts_ptr + there4 + D, df, mask=held)
            tl.store(acts_ptr + there4 + 2 * D, dg, mask=held)
            tl.store(acts_ptr + there4 + 3 * D, do, mask=held)
            tl.store(c_ptr + there1, dc, mask=held)


@triton.jit(do_not_specialize=["start"])
def _backward(
    gh_ptr, acts_ptr, c_ptr, w_ptr, a_ptr, carry_ptr, sums_ptr, count_ptr, start,
    FIRST: tl.constexpr, LAST: tl.constexpr,
    J: tl.constexpr, B: tl.constexpr, T: tl.constexpr, D: tl.constexpr, LOW: tl.constexpr,
    PRECISION: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    CHUNK: tl.constexpr, STAY: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Gradients of the four gates before their functions, from those of h.

    Names of gradients end in _. Steps FIRST to LAST are counted from the end. w is (K, D, D·4), the
    four gates of a unit side by side. `sums` has two places, used alternately, for every program's
    product.
    """
    blocks: tl.constexpr = (D + BN - 1) // BN
    team, mine = start + tl.program_id(1), tl.program_id(0)
    count_ptr += team * 32
    client, sample = (team // tl.cdiv(B, BR)).to(tl.int64), team % tl.cdiv(B, BR) * BR
    b, n = sample + tl.arange(0, BR), mine * BN + tl.arange(0, BN)
    held = (b < B)[:, None] & (n < D)[None, :]
    row = (client * J * B + b)[:, None]
    at4, at1, kept = (
        row * (4 * T * D) + n[None, :],
        row * (T * D) + n[None, :],
        row * D + n[None, :],
    )
    m, column, gate = (
        tl.arange(0, CHUNK),
        tl.arange(0, J * BR),
        mine * (4 * BN) + tl.arange(0, 4 * BN),
    )
    w_at = client * (4 * D * D) + m[:, None] * (4 * D) + gate[None, :]
    sums_ptr += team.to(tl.int64) * (2 * blocks * J * BR * D)
    theirs = ((b - sample) * (J * D))[:, None] + n[None, :]
    ours = (mine * (J * BR) + column)[None, :] * D + m[:, None]
    if STAY:
        w = load(w_ptr + w_at, (m < D)[:, None] & (gate < 4 * D)[None, :], LOW)
    c_ = tl.load(carry_ptr + kept, mask=held & (FIRST > 0), other=0.0)
    if J == 2:
        dc_ = tl.load(carry_ptr + B * D + kept, mask=held & (FIRST > 0), other=0.0)
    for step in range(FIRST, LAST):
        t = T - 1 - step
        here4, here1 = at4 + t * (4 * D), at1 + t * D
        h_ = tl.load(gh_ptr + here1, mask=held, other=0.0)
        i, f = (
            tl.load(acts_ptr + here4, mask=held, other=0.0),
            tl.load(acts_ptr + here4 + D, mask=held, other=0.0),
        )
        g, o = (
            tl.load(acts_ptr + here4 + 2 * D, mask=held, other=0.0),
            tl.load(acts_ptr + here4 + 3 * D, mask=held, other=0.0),
        )
        s = _tanh(tl.load(c_ptr + here1, mask=held, other=0.0))
        before = tl.load(c_ptr + here1 - D, mask=held & (t > 0), other=0.0)
        if J == 2:
            there4, there1 = here4 + B * T * 4 * D, here1 + B * T * D
            dh_ = tl.load(gh_ptr + there1, mask=held, other=0.0)
            di, df = (
                tl.load(acts_ptr + there4, mask=held, other=0.0),
                tl.load(acts_ptr + there4 + D, mask=held, other=0.0),
            )
            dg = tl.load(acts_ptr + there4 + 2 * D, mask=held, other=0.0)
            do = tl.load(acts_ptr + there4 + 3 * D, mask=held, other=0.0)
            dc = tl.load(c_ptr + there1, mask=held, other=0.0)
            dbefore = tl.load(c_ptr + there1 - D, mask=held & (t > 0), other=0.0)
        if not ALONE:
            _await(count_ptr, step * blocks)
        sums = sums_ptr + (step + 1) % 2 * (blocks * J * BR * D) + theirs
        for block in tl.static_range(blocks):
            later = sums + block * (J * BR * D)
            h_ += tl.load(later, mask=held & (step > 0), other=0.0, cache_modifier=".cg")
            if J == 2:
                dh_ += tl.load(later + D, mask=held & (step > 0), other=0.0, cache_modifier=".cg")
        o_ = h_ * s
        s_ = h_ * o
        if J == 2:
            o_ += dh_ * ((1 - 2 * o) * do * s + (1 - s * s) * dc)
            s_ += dh_ * (o * (1 - o) * do - 2 * s * o * dc)
            dc_ += dh_ * o * (1 - s * s)
        c_ += s_ * (1 - s * s)
        i_, f_, g_ = c_ * g, c_ * before, c_ * i
        c_ *= f
        if J == 2:
            i_ += dc_ * ((1 - 2 * i) * di * g + (1 - g * g) * dg)
            f_ += dc_ * ((1 - 2 * f) * df * before + dbefore)
            g_ += dc_ * (i * (1 - i) * di - 2 * g * i * dg)
            c_ += dc_ * f * (1 - f) * df
            di_, df_, dg_, do_ = (
                dc_ * g * i * (1 - i),
                dc_ * before * f * (1 - f),
                dc_ * i * (1 - g * g),
                dh_ * s * o * (1 - o),
            )
            dc_ *= f
        i_, f_, g_, o_ = i_ * i * (1 - i), f_ * f * (1 - f), g_ * (1 - g * g), o_ * o * (1 - o)
        a_ = _whole(i_, f_, g_, o_)
        if J == 2:
            a_ = tl.permute(tl.join(a_, _whole(di_, df_, dg_, do_)), (0, 4, 1, 2, 3))
        a_ = tl.trans(tl.reshape(a_, (J * BR, 4 * BN)).to(tl.bfloat16 if LOW else tl.float32))
        sums = sums_ptr + step % 2 * (blocks * J * BR * D) + ours
        known = (sample + column // J < B)[None, :]
        if STAY:
            tl.store(sums, tl.dot(w, a_, input_precision=PRECISION), mask=known & (m < D)[:, None])
        else:
            for far in range(0, D, CHUNK):
                inside = (far + m < D)[:, None]
                w = load(w_ptr + w_at + far * (4 * D), inside & (gate < 4 * D)[None, :], LOW)
                tl.store(sums + far, tl.dot(w, a_, input_precision=PRECISION), mask=known & inside)
        if not ALONE:
            _arrive(count_ptr)
        tl.store(a_ptr + here4, i_, mask=held)
        tl.store(a_ptr + here4 + D, f_, mask=held)
        tl.store(a_ptr + here4 + 2 * D, g_, mask=held)
        tl.store(a_ptr + here4 + 3 * D, o_, mask=held)
        if J == 2:
            tl.store(a_ptr + there4, di_, mask=held)
            tl.store(a_ptr + there4 + D, df_, mask=held)
            tl.store(a_ptr + there4 + 2 * D, dg_, mask=held)
            tl.store(a_ptr + there4 + 3 * D, do_, mask=held)
    if ALONE:
        tl.store(carry_ptr + kept, c_, mask=held)
        if J == 2:
            tl.store(carry_ptr + B * D + kept, dc_, mask=held)


def _chip(x: Tensor) -> tuple[int, int]:
    """Number of multiprocessors and bytes of shared memory per program; made up on a CPU."""
    if not x.is_cuda:
        return 4, 227 * 1024
    properties: Any = torch.cuda.get_device_properties(x.device)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin


def _tile(x: Tensor, J: int, B: int, D: int, how: str) -> dict[str, Any]:
    """Sizes of one program.

    Weights that do not fit in shared memory, and those of float32 products, are read in chunks at
    every time step.
    """
    rows, whole = (
        max(16, min(32 // J, triton.next_power_of_2(B))),
        max(16, triton.next_power_of_2(D)),
    )
    units = min(32, whole)
    needed = (4 * units * (2 if how == "bf16" else 4) + J * rows * 4) * whole
    stay = how != "float32" and needed <= _chip(x)[1]
    return {
        "LOW": how == "bf16", "PRECISION": precision(how),
        "BR": rows, "BN": units, "CHUNK": whole if stay else min(64, whole), "STAY": stay,
        "ALONE": not x.is_cuda, "num_warps": 8, "num_stages": 1, "launch_cooperative_grid": True,
    }  # fmt: skip


def _launches(
    x: Tensor, teams: int, blocks: int, T: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int, int]]]:
    """Yield grids, each with its first team and its time steps.

    Interpreted programs run one after another, so none may wait for another.
    """
    room = _chip(x)[0] // blocks
    for start in range(0, teams, room):
        for first, last in [(0, T)] if x.is_cuda else [(t, t + 1) for t in range(T)]:
            yield (blocks, min(room, teams - start)), (start, first, last)


def lstm(p: Tensor, w: Tensor, how: str, **tile: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recurrence of all clients; return h, the gates after their functions, and c.

    `p` holds the gates' inputs, (K, J, B, T, 4D); `tile` overrides sizes of `_tile`.
    """
    p, w = p.contiguous(), w.contiguous()
    K, J, B, T, D = *p.shape[:4], p.shape[4] // 4
    tile = _tile(p, J, B, D, how) | tile
    teams, blocks = K * triton.cdiv(B, tile["BR"]), triton.cdiv(D, tile["BN"])
    h, c, acts = p.new_empty(K, J, B, T, D), p.new_empty(K, J, B, T, D), torch.empty_like(p)
    count = torch.zeros(teams, 32, dtype=torch.int32, device=p.device)
    for grid, part in _launches(p, teams, blocks, T):
        _forward[grid](p, w, h, acts, c, count, *part, J=J, B=B, T=T, D=D, **tile)
    return h, acts, c


def lstm_backward(gh: Tensor, acts: Tensor, c: Tensor, w: Tensor, how: str, **tile: Any) -> Tensor:
    """Return the gradient of the gates' inputs, from that of h and the other results of `lstm`."""
    K, J, B, T, D = gh.shape
    gh, w = gh.contiguous(), w.reshape(K, 4, D, D).permute(0, 3, 2, 1).contiguous()
    tile = _tile(gh, J, B, D, how) | tile
    teams, blocks = K * triton.cdiv(B, tile["BR"]), triton.cdiv(D, tile["BN"])
    a, carry, sums = (
        torch.empty_like(acts),
        gh.new_empty(K, J, B, D),
        gh.new_empty(teams, 2, blocks, J * tile["BR"], D),
    )
    count = torch.zeros(teams, 32, dtype=torch.int32, device=gh.device)
    for grid, part in _launches(gh, teams, blocks, T):
        _backward[grid](gh, acts, c, w, a, carry, sums, count, *part, J=J, B=B, T=T, D=D, **tile)
    return a
