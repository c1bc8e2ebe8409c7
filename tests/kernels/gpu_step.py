"""The local step as inductor writes it for a GPU, run on a CPU: its Triton kernels interpreted,
convolutions by their twins.

A step is traced and prepared on the CPU, with every tensor saying that it is on a GPU. Where the
compiler begins to write code, the graph moves to a GPU: shapes and strides without memory. What
comes back is called with the CPU's tensors. It needs a process of its own, in which much of torch
is told that there is a GPU. What torch does earlier for a GPU alone is not seen here.
"""

from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fedmix import Exchange, Federation, Objective, Training, models
from fedmix.kernels.precision import Precision, arithmetic
from fedmix.models import initialised
from fedmix.training.engines import Vectorised, compiled
from fedmix.training.engines.bf16 import keep_rounded, misrounded
from fedmix.training.engines.compiled import Program, State
from fedmix.training.engines.vectorised import VectorisedRunner
from tests.synthetic import SHAPES, federated

AT_ONCE, LARGEST = 2**15, 2**12  # elements, and along x, where a kernel may rely on it
GPU = torch.device("cuda", 0)
SHORT_VGG = (
    lambda: models.vgg(classes=10, widths=(4, 4, 8, 8), hidden=16),
    (3, 16, 16),
    10,
)  # what compiles in half the time


def errors(kind: str, objective: Objective, how: Precision) -> dict[str, float]:
    """How far the step of a GPU ends from the plain one, for all that is written, as a part of how
    far that one goes.

    With bf16 both round as on a GPU, so that they see the same sides of kinks; CPU's autocast does
    for tensors what a GPU's does.
    """
    low = how == "bf16"
    made = _program(kind, objective)
    state = _apart(made.state)
    plain, quick = (
        pytree.tree_map_only(Tensor, lambda t: _like(t, t.device).copy_(t), state) for _ in range(2)
    )
    with torch.no_grad():
        with arithmetic(how), torch.autocast("cpu", torch.bfloat16, enabled=low):
            run, rounded = _compiled(made._step, quick)
            with patch.object(Tensor, "is_cuda", low):
                made._step(plain)
        run()
    names = [*state.params, *(f"velocity of {name}" for name in state.velocity), "losses", "at"]
    apart = {}
    for name, *tensors in zip(names, state.written, plain.written, quick.written, strict=True):
        before, a, b = (t.double() for t in tensors)
        apart[name] = float((b - a).norm() / (a - before).norm())
    assert bool(rounded) == low
    return apart | {"rounded weights": misrounded(rounded)}


def _program(kind: str, objective: Objective) -> Program:
    """A program of two clients that has taken a step; one of them has a batch that is not full."""
    exchange = Exchange(m=1) if objective.needs.means else None
    training = Training(2, epochs=1, batch_size=3, lr=0.01, momentum=0.9)
    with patch.dict(SHAPES, vgg=SHORT_VGG):
        model, data = initialised(SHAPES[kind][0], 1), federated(kind, (3, 2))
    federation = Federation(
        model, data, objective, training, engine=Vectorised(compile=False), exchange=exchange
    )
    list(federation.run(1))
    assert isinstance(federation.runner, VectorisedRunner)
    (made,) = federation.runner._programs.values()
    return made


def _apart(state: State) -> State:
    """The state before its step, with weights laid out as on a GPU and different by client."""
    rng = torch.Generator().manual_seed(0)

    def placed(t: Tensor) -> Tensor:
        with patch.object(Tensor, "is_cuda", True):
            room = compiled._room(t[0], len(t))
        return room.copy_(t * (1 + 0.2 * torch.randn(t.shape, generator=rng)))

    params, velocity = (
        {n: placed(t) for n, t in tensors.items()} for tensors in (state.params, state.velocity)
    )
    return state._replace(
        params=params, velocity=velocity, at=state.at * 0, losses=state.losses * 0
    )


def _like(t: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)


def _compiled(
    step: Callable[[State], None], state: State
) -> tuple[Callable[[], Any], list[tuple[Tensor, Tensor]]]:
    """The step of that state, and its rounded weights with what they are rounded from."""
    leaves, shape = pytree.tree_flatten(state)
    with patch.object(Tensor, "is_cuda", True):
        traced = compiled._Quick._trace(step, leaves, shape)
    rounded = keep_rounded(traced, leaves)
    compiled._for_gpu(traced)
    leaves += [mine for mine, _ in rounded]
    made = compiled._compile(traced, leaves)
    return lambda: made(*leaves), rounded


def _on_gpu(lowering: Any) -> Any:
    """Lowering, at whose start a graph moves to a GPU; before, it must be on a CPU, since torch
    without CUDA refuses others.
    """

    def moved(value: Any) -> Any:
        return _like(value, GPU) if isinstance(value, Tensor) else value

    class OnGpu(lowering):  # type: ignore[misc]  # a class that is not known before
        def __init__(self, graph: GraphModule, example_inputs: list[Any], **options: Any) -> None:
            with TracingContext.get().fake_mode or nullcontext():
                for node in graph.graph.nodes:
                    if "device" in node.kwargs:
                        node.kwargs = {**node.kwargs, "device": GPU}
                    if "val" in node.meta:
                        node.meta["val"] = pytree.tree_map(moved, node.meta["val"])
                self.placed = [moved(value) for value in example_inputs]
            graph.recompile()
            super().__init__(graph, example_inputs=self.placed, **options)

        def run(self, *_: Any) -> Any:
            return super().run(*self.placed)

    return OnGpu


def pretend() -> None:
    """Answer what the compiler asks of a GPU; to be called once, in a process of its own."""
    from torch._inductor.compile_fx import GraphLowering  # type: ignore[attr-defined]  # imported there, and used from there
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    from fedmix.kernels import conv, lstm_triton

    h200 = DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, warp_size=32)
    answers: dict[str, Any] = {
        "fedmix.kernels.conv.has_triton": lambda: True,
        "fedmix.kernels.lstm.has_triton": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.get_device_properties": lambda *_: SimpleNamespace(
            **h200._asdict(), name="H200", gcnArchName=""
        ),
        "torch.cuda.get_device_capability": lambda *_: (9, 0),
        "torch.cuda.set_device": lambda _: None,
        "torch.cuda._DeviceGuard": lambda _: nullcontext(),
        "torch._C._cuda_getCurrentRawStream": lambda _: 0,
        "torch._C._dynamo.guards._empty_strided_cuda": lambda size, stride, dtype: (
            torch.empty_strided(size, stride, dtype=dtype)
        ),
        "torch._dynamo.device_interface.CudaInterface.is_bf16_supported": lambda **_: True,
        "torch._subclasses.fake_tensor.init_gpu_context": lambda *_: None,
        "torch.utils._triton.triton_hash_with_backend": lambda: "none",
        "torch._inductor.config.force_disable_caches": True,
        "torch._inductor.scheduler.has_triton": lambda: True,
        "torch._inductor.compile_fx.GraphLowering": _on_gpu(GraphLowering),
        "torch._inductor.runtime.hints.DeviceProperties.create": lambda *_: h200,
        "torch._inductor.runtime.triton_heuristics.CachingAutotuner.run": _wider(
            CachingAutotuner.run
        ),
        "torch._inductor.runtime.triton_helpers.set_driver_to_gpu": lambda: None,
        "torch._inductor.runtime.triton_helpers.libdevice": _Functions(),
        "torch._inductor.runtime.triton_helpers.math": _Functions(),
    }
    for name, answer in answers.items():
        patch(name, answer, create=True).start()

    def lstm_backward(
        gh: Tensor, acts: Tensor, c: Tensor, _: Tensor, w: Tensor, how: str
    ) -> Tensor:
        return lstm_triton.lstm_backward(gh, acts, c, w, how)

    for twin in (
        conv._conv,
        conv._conv_input,
        conv._conv_weight,
    ):  # which autocast leaves alone on a GPU
        torch.library.impl(
            f"fedmix::{twin.__name__[1:]}", "cpu", torch.autocast("cpu", enabled=False)(twin)
        )
    torch.library.impl(
        "fedmix::lstm", "cpu", lstm_triton.lstm
    )  # whose twin takes derivatives, which compiled code cannot
    torch.library.impl("fedmix::lstm_backward", "cpu", lstm_backward)


def _wider(run: Any) -> Any:
    """Have a program of a kernel do more at once: the interpreter takes one after another, each as
    arrays.
    """

    def wider(self: Any, *args: Any, **options: Any) -> Any:
        blocks = self.configs[0].kwargs
        most = (
            self.size_hints["x"] if self.size_hints else 0
        )  # a tile that was given is part of the code
        while (
            blocks.get("XBLOCK", LARGEST) < min(most, LARGEST) and prod(blocks.values()) < AT_ONCE
        ):
            blocks["XBLOCK"] *= 2
        return run(self, *args, **options)

    return wider


class _Functions:
    """Functions of CUDA's library, which the interpreter does not have, by those of Triton."""

    def __getattr__(self, name: str) -> Any:
        import triton.language as tl

        return (lambda x: x != x) if name == "isnan" else getattr(tl, name)
