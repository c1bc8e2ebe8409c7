"""LSTM recurrence over a whole sequence, fast when every client has its own weights.

With p the gates' inputs (B, T, 4D): a = p_t + h_{t−1}·wᵀ, in four parts; i, f, o = σ(a), g =
tanh(a); c ← f·c + i·g and h ← o·tanh(c). The kernels take (K, J, B, T, 4D): K clients, and J = 2
for a value with its derivative, else 1.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import jvp, vjp

from fedmix.core.sharing import divided
from fedmix.kernels.operators import has_triton, only_stacked, operator
from fedmix.kernels.precision import current


def recurrence(p: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h, the four gates after their functions, and c, for gates' inputs (B, T, 4D).

    This is plain PyTorch, which has derivatives of all kinds.
    """
    h = c = torch.zeros_like(p[:, 0, : w.shape[1]])
    steps = []
    for given in p.unbind(1):
        i, f, g, o = (given + h @ w.T).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        steps.append((h, torch.cat([i, f, g, o], -1), c))
    h, acts, c = (torch.stack(part, 1) for part in zip(*steps, strict=True))
    return h, acts, c


def layer(x: Tensor, into: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """Return h, (B, T, D), for inputs x, (B, T, I): `lstm` of x·intoᵀ + bias.

    Where clients only step, on a CPU, each is left to PyTorch's own LSTM.
    """
    if not x.is_cuda and x.ndim == 3 and only_stacked():
        h: Tensor = _Stacked.apply(x, into, w, bias)
        return h
    return lstm(x @ into.T + bias, w)


class _Stacked(torch.autograd.Function):
    """PyTorch's LSTM, which `vmap` runs client by client.

    It has no second derivative and no forward mode, so it is for steps that need neither.
    """

    @staticmethod
    def forward(x: Tensor, into: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        start = x.new_zeros(1, len(x), w.shape[1])
        both = [into, w, bias, torch.zeros_like(bias)]  # it adds a second bias
        h: Tensor = torch.lstm(x, (start, start), both, True, 1, 0.0, True, False, True)[0]
        return h

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Do nothing: it is applied where `vmap` is outermost, which calls the rule below."""

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Tensor) -> Any:
        stacked = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(given, dims, strict=True)
        ]
        return _Clients.apply(*stacked), 0


class _Clients(torch.autograd.Function):
    """The LSTMs of stacked clients, whom the threads divide.

    Each thread has its clients to itself; to share one LSTM, they would meet at every time step.
    """

    @staticmethod
    def forward(ctx: Any, *stacked: Tensor) -> Tensor:
        def run(*given: Tensor) -> tuple[Tensor, list[Tensor]]:
            live = [
                t.detach().requires_grad_(needs)
                for t, needs in zip(given, ctx.needs_input_grad, strict=True)
            ]
            with torch.enable_grad():
                return _Stacked.forward(*live), [t for t in live if t.requires_grad]

        ctx.ran = divided(run, zip(*stacked, strict=True))
        return torch.stack([h.detach() for h, _ in ctx.ran])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        def run(client: tuple[Tensor, list[Tensor]], slope: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(*client, slope)

        by_client = divided(run, zip(ctx.ran, slope, strict=True))
        slopes = map(torch.stack, zip(*by_client, strict=True))
        return tuple(next(slopes) if needs else None for needs in ctx.needs_input_grad)


def lstm(p: Tensor, w: Tensor) -> Tensor:
    """Return h, (B, T, D), for gates' inputs p, (B, T, 4D)."""
    if not quick(p, w):
        return recurrence(p, w)[0]
    h: Tensor = _Recurrence.apply(p[None], w, current())[0]
    return h[0]


def lstm_along(pair: Tensor, w: Tensor) -> Tensor:
    """Return h and its derivative, (2, B, T, D).

    `pair` holds the gates' inputs and the direction in which they move, (2, B, T, 4D).
    """
    if not quick(pair, w):
        return torch.stack(jvp(lambda p: recurrence(p, w)[0], (pair[0],), (pair[1],))[:2])
    h: Tensor = _Recurrence.apply(pair, w, current())[0]
    return h


def quick(p: Tensor, w: Tensor) -> bool:
    """Whether the kernel can be used.

    It has 32 hidden units per multiprocessor, and needs all units of a client at the same time.
    """
    if not (p.is_cuda and w.dtype == p.dtype == torch.float32 and has_triton()):
        return False
    return w.shape[-1] <= 32 * torch.cuda.get_device_properties(p.device).multi_processor_count


def _lstm(p: Tensor, w: Tensor, how: str) -> tuple[Tensor, Tensor, Tensor]:
    """Plain version of the kernel, client by client.

    With J = 2, the second half of the gates holds their derivatives before the functions.
    """
    results = []
    for pair, weight in zip(p, w, strict=True):
        values = recurrence(pair[0], weight)
        if len(pair) == 1:
            results.append(tuple(v[None] for v in values))
            continue
        dh, _, dc = jvp(lambda q, weight=weight: recurrence(q, weight), (pair[0],), (pair[1],))[1]
        before = torch.cat([torch.zeros_like(dh[:, :1]), dh[:, :-1]], 1)
        results.append(
            tuple(
                torch.stack(v)
                for v in (
                    (values[0], dh),
                    (values[1], pair[1] + before @ weight.T),
                    (values[2], dc),
                )
            )
        )
    h, acts, c = (torch.stack(part) for part in zip(*results, strict=True))
    return h, acts, c


def _lstm_backward(gh: Tensor, acts: Tensor, c: Tensor, p: Tensor, w: Tensor, how: str) -> Tensor:
    def given(pair: Tensor, weight: Tensor) -> Tensor:
        if len(pair) == 1:
            return recurrence(pair[0], weight)[0][None]
        return torch.stack(jvp(lambda q: recurrence(q, weight)[0], (pair[0],), (pair[1],))[:2])

    return torch.stack(
        [vjp(lambda q, y=y: given(q, y), x)[1](g)[0] for g, x, y in zip(gh, p, w, strict=True)]
    )


def _shapes(p: Tensor, w: Tensor, how: str) -> tuple[Tensor, Tensor, Tensor]:
    small = (*p.shape[:-1], w.shape[-1])
    return p.new_empty(small), torch.empty_like(p), p.new_empty(small)


def _triton() -> Any:
    from fedmix.kernels import lstm_triton

    return lstm_triton


_op = operator(_lstm, _shapes, lambda *args: _triton().lstm(*args))
_op_backward = operator(
    _lstm_backward,
    lambda gh, acts, *_: torch.empty_like(acts),
    lambda gh, acts, c, p, w, how: _triton().lstm_backward(gh, acts, c, w, how),
)


class _Gradient(torch.autograd.Function):
    """One client's gradient of the gates' inputs. It has no derivative itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gh: Tensor, acts: Tensor, c: Tensor, p: Tensor, w: Tensor, how: str) -> Tensor:
        return _op_backward(gh[None], acts[None], c[None], p[None], w[None], how)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass


class _Recurrence(torch.autograd.Function):
    """One client's recurrence, with first-order derivatives in reverse and forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, w: Tensor, how: str) -> tuple[Tensor, Tensor, Tensor]:
        h, acts, c = _op(p[None], w[None], how)
        return h[0], acts[0], c[0]

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        p, w, ctx.how = inputs
        h, acts, c = output
        ctx.mark_non_differentiable(acts, c)
        ctx.save_for_backward(h, acts, c, p, w)
        ctx.save_for_forward(h, p, w)

    @staticmethod
    def jvp(ctx: Any, dp: Tensor | None, dw: Tensor | None, *_: Any) -> tuple[Tensor, None, None]:
        """Use the pair, whose gradient is known; a change dw moves the gates by h_{t−1}·dwᵀ."""
        h, p, w = ctx.saved_tensors
        if len(p) == 2:
            raise NotImplementedError("an LSTM has no second derivative along a direction here")
        direction = torch.zeros_like(p) if dp is None else dp
        if dw is not None:
            before = torch.cat([torch.zeros_like(h[..., :1, :]), h[..., :-1, :]], -2)
            direction = direction + before @ dw.T
        return _Recurrence.apply(torch.cat([p, direction]), w, ctx.how)[0][1:], None, None

    @staticmethod
    def backward(ctx: Any, gh: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:
        h, acts, c, p, w = ctx.saved_tensors
        a = _Gradient.apply(gh, acts, c, p, w, ctx.how)
        before, after = h[..., :-1, :].flatten(0, -2), a[..., 1:, :].flatten(0, -2)
        return a, after.T @ before, None
