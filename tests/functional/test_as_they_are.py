"""Modules are called once, as they are: modes, hooks, autocast, compiled, in several processes."""

import copy
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fedmix import BadInput, FedmixWarning
from fedmix.functional import fedmix_loss, naivemix_loss
from tests.functional.textbook import FLAT, IMAGE, KINDS, Batch, Function, LastStep, dense, made

LAM = 0.3


def test_running_statistics_move_once_a_call() -> None:
    """momentum·mean of the layer's inputs, the first time and the second."""
    net, batch = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).double(), Batch(FLAT)
    norm, mean = net[0], (1 - LAM) * batch.x.mean(0)
    variance = ((1 - LAM) * batch.x).var(0)
    assert isinstance(norm, nn.BatchNorm1d)
    for call in (1, 2):
        fedmix_loss(net, *batch.tensors(), LAM)
        assert int(norm.num_batches_tracked or 0) == call
        kept = 0.9**call
        torch.testing.assert_close(norm.running_mean, (1 - kept) * mean)
        torch.testing.assert_close(norm.running_var, kept + (1 - kept) * variance)


def test_the_first_call_draws_no_more_than_others() -> None:
    """The random numbers after a call are the same, whether it had to look for its way or not."""
    net, batch = made("dropout"), Batch(FLAT)
    after = []
    for _ in range(2):
        torch.manual_seed(4)
        loss = fedmix_loss(net, *batch.tensors(), LAM)
        after.append((float(loss.detach()), torch.get_rng_state()))
    assert after[0][0] == after[1][0]
    assert torch.equal(after[0][1], after[1][1])


def test_hooks_run() -> None:
    net, batch, seen = made("mlp"), Batch(FLAT), []
    fedmix_loss(net, *batch.tensors(), LAM)
    net[1].register_forward_hook(lambda *args: seen.append(args[2].detach().clone()))  # type: ignore[index]
    fedmix_loss(net, *batch.tensors(), LAM)
    [values] = seen
    with torch.no_grad():
        expected = net[1](net[0]((1 - LAM) * batch.x))  # type: ignore[index]
    torch.testing.assert_close(values, expected)
    net[1].register_forward_hook(lambda *args: 2 * args[2])  # type: ignore[index]
    doubled = copy.deepcopy(net)
    doubled[1] = nn.Sequential(nn.ReLU(), Function(lambda x: 2 * x))  # type: ignore[operator]
    torch.testing.assert_close(
        fedmix_loss(net, *batch.tensors(), LAM), fedmix_loss(doubled, *batch.tensors(), LAM)
    )


def test_hooks_on_gradients_are_called_for_the_derivative_too() -> None:
    net, batch, seen = made("mlp"), Batch(FLAT), []
    expected = fedmix_loss(net, *batch.tensors(), LAM)
    net[2].register_full_backward_hook(lambda *args: seen.append(args[0]))  # type: ignore[index]
    with pytest.warns(FedmixWarning, match="if they change gradients they change the loss"):
        loss = fedmix_loss(copy.deepcopy(net), *batch.tensors(), LAM)
    torch.testing.assert_close(loss, expected)
    assert seen


class Gated(nn.Module):
    """Gated if asked for; gates have no second derivative in forward mode."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 6)

    def forward(self, x: Tensor, gated: bool = False) -> Tensor:
        values: Tensor = self.out(x)
        return nn.functional.glu(values) if gated else values[:, :3]


def test_a_model_may_be_called_in_another_way() -> None:
    net, batch = Gated().double(), Batch(FLAT)
    fedmix_loss(net, *batch.tensors(), LAM)
    loss = fedmix_loss(net, *batch.tensors(), LAM, forward=lambda net, x: net(x, gated=True))
    same = fedmix_loss(nn.Sequential(net.out, nn.GLU()), *batch.tensors(), LAM)
    mine, theirs = (torch.autograd.grad(one, net.out.weight) for one in (loss, same))
    torch.testing.assert_close(mine, theirs)


def test_a_model_may_get_other_layers() -> None:
    net, batch = dense(nn.Tanh()).double(), Batch(FLAT)
    fedmix_loss(net, *batch.tensors(), LAM)
    net[1], net[2] = nn.GLU(), nn.Linear(4, 3).double()
    again = copy.deepcopy(net)
    mine, theirs = (
        torch.autograd.grad(fedmix_loss(one, *batch.tensors(), LAM), list(one.parameters()))
        for one in (net, again)
    )
    torch.testing.assert_close(mine, theirs)


def test_threads_take_turns() -> None:
    """Forward mode is a switch of the whole process."""
    batch = Batch(IMAGE)
    nets = [made("cnn") for _ in range(4)]
    expected = float(fedmix_loss(made("cnn"), *batch.tensors(), LAM).detach())

    def several(net: nn.Module) -> list[float]:
        return [float(fedmix_loss(net, *batch.tensors(), LAM).detach()) for _ in range(20)]

    with ThreadPoolExecutor(4) as threads:
        found = [value for values in threads.map(several, nets) for value in values]
    assert found == pytest.approx([expected] * 80)


def test_a_first_layer_may_change_its_input() -> None:
    batch = Batch(FLAT)
    net = nn.Sequential(nn.ReLU(inplace=True), *dense(nn.ReLU(inplace=True))).double()
    other = nn.Sequential(nn.ReLU(), *list(net)[1:])
    before = batch.x.clone()
    torch.testing.assert_close(
        fedmix_loss(net, *batch.tensors(), LAM), fedmix_loss(other, *batch.tensors(), LAM)
    )
    assert torch.equal(batch.x, before)


@pytest.mark.parametrize("kind", ["batch norm", "own function"])
def test_without_gradients(kind: str) -> None:
    net, batch = made(kind), Batch(KINDS[kind][1])
    with torch.no_grad():
        first, second = (fedmix_loss(net, *batch.tensors(), LAM) for _ in range(2))
    assert not first.requires_grad
    torch.testing.assert_close(first, fedmix_loss(net, *batch.tensors(), LAM).detach())
    torch.testing.assert_close(first, second)


def test_inputs_with_a_gradient_of_their_own() -> None:
    """As embeddings that are trained too: FedMix's loss of both layers is that of one module."""
    batch = Batch(FLAT)
    first, rest = nn.Linear(3, 3, bias=False).double(), dense(nn.Tanh()).double()
    loss = fedmix_loss(rest, first(batch.x), batch.y, first(batch.mean_x), batch.mean_y, LAM)
    whole = fedmix_loss(nn.Sequential(first, rest), *batch.tensors(), LAM)
    torch.testing.assert_close(loss, whole)
    mine, theirs = (torch.autograd.grad(one, list(rest.parameters())) for one in (loss, whole))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["mlp", "batch norm", "transformer", "own function"])
def test_autocast(kind: str) -> None:
    """In bfloat16 the gradients are those of float32, but for rounding to 8 bits."""
    net, batch = made(kind).float(), Batch(KINDS[kind][1])
    x, y, mean_x, mean_y = batch.tensors()
    gradients = []
    for on in (True, False):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            loss = fedmix_loss(net, x.float(), y, mean_x, mean_y, LAM, expand="logits")
        assert loss.dtype == torch.float32
        grads = torch.autograd.grad(loss, list(net.parameters()))
        gradients.append(torch.cat([g.flatten() for g in grads]))
    rounded, exact = gradients
    assert 0 < float((rounded - exact).norm()) < 0.03 * float(exact.norm())


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_module_runs_as_it_was_written(in_place: bool) -> None:
    net, batch = made("transformer"), Batch(KINDS["transformer"][1])
    torch.manual_seed(0)
    expected = fedmix_loss(copy.deepcopy(net), *batch.tensors(), LAM)
    compiled: Any = net
    if in_place:
        net.compile(backend="eager")
    else:
        compiled = torch.compile(net, backend="eager")
    torch.manual_seed(0)
    with pytest.warns(FedmixWarning, match="compiled code has no second derivatives"):
        ours = fedmix_loss(compiled, *batch.tensors(), LAM)
    torch.testing.assert_close(ours, expected)
    naivemix_loss(compiled, *batch.tensors(), LAM).backward()  # type: ignore[no-untyped-call]


def test_a_loss_is_not_compiled() -> None:
    net, batch = made("mlp"), Batch(FLAT)
    inside = torch.compile(lambda: fedmix_loss(net, *batch.tensors(), LAM), backend="eager")
    with pytest.raises(BadInput, match="cannot be compiled itself"):
        inside()


def test_checkpoints_of_activations() -> None:
    batch = Batch(FLAT)

    def kept(reentrant: bool) -> nn.Module:
        torch.manual_seed(0)
        again = Function(lambda x: checkpoint(torch.tanh, x, use_reentrant=reentrant))
        return dense(again).double()

    torch.manual_seed(0)
    expected = fedmix_loss(dense(nn.Tanh()).double(), *batch.tensors(), LAM)
    torch.testing.assert_close(fedmix_loss(kept(False), *batch.tensors(), LAM), expected)
    with pytest.raises(BadInput, match=r"PyTorch has none .*use_reentrant"):
        fedmix_loss(kept(True), *batch.tensors(), LAM)


def test_what_is_no_tensor_is_picked() -> None:
    class Output(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = made("mlp")

        def forward(self, *, values: Tensor) -> dict[str, Tensor]:
            return {"logits": self.net(values)}

    net, batch = Output(), Batch(FLAT)
    ours = fedmix_loss(net, *batch.tensors(), LAM, forward=lambda net, x: net(values=x)["logits"])
    torch.testing.assert_close(ours, fedmix_loss(net.net, *batch.tensors(), LAM))
    with pytest.raises(BadInput, match="returns a dict; pick the tensor of its outputs"):
        fedmix_loss(net, *batch.tensors(), LAM, forward=lambda net, x: net(values=x))


def part(rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = Batch((6, 5, 4))
    rows = slice(3 * rank, 3 * rank + 3)
    return (batch.x[rows].float(), batch.y[rows], batch.mean_x, batch.mean_y)


def sequence(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "lstm":
        return LastStep()
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def train_together(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {}
    for kind in ("batch norm", "lstm"):
        for unused in (False, True):
            net = DistributedDataParallel(sequence(kind), find_unused_parameters=unused)
            for _ in range(2):
                net.zero_grad()
                loss = fedmix_loss(net, *part(rank), LAM, expand="logits")
                loss.backward()  # type: ignore[no-untyped-call]
            found[kind, unused] = [p.grad for p in net.parameters()]
    static = DistributedDataParallel(sequence("lstm"), static_graph=True)
    with pytest.raises(BadInput, match="leave static_graph out"):
        fedmix_loss(static, *part(rank), LAM)
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train_together, (port, str(tmp_path)), 2)  # type: ignore[attr-defined, no-untyped-call]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for (kind, unused), mine in found[0].items():
        net = sequence(kind)
        apart = [
            torch.autograd.grad(
                fedmix_loss(net, *part(rank), LAM, expand="logits"), list(net.parameters())
            )
            for rank in (0, 1)
        ]
        for ours, theirs, a, b in zip(mine, found[1][kind, unused], *apart, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
            torch.testing.assert_close(ours, (a + b) / 2, rtol=1e-5, atol=2e-6)  # threads round
