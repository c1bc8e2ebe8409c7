"""The plain PyTorch loop: one client after another, eager; FedMix by double backward."""

from functools import partial

import torch
from in_torch import arrays, module, set_threads, tensors, train, trained
from measure import Job, job
from torch import Tensor, nn
from torch.nn import functional as F
from workload import Workload


def train_fedmix(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    means: list[tuple[Tensor, Tensor]],
    work: Workload,
) -> None:
    """Algorithm 2 of the paper, in place.

    With x' = (1−λ)x, the loss is (1−λ)·ℓ(f(x'), y) + λ·ℓ(f(x'), ȳ) + λ·∂ℓ(f(x'), y)/∂x · x̄.
    """
    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
    for batch, (mean_x, mean_y) in zip(rows, means, strict=True):
        optimiser.zero_grad()
        inputs = ((1 - work.lam) * x[batch]).requires_grad_()
        logits = net(inputs)
        own = F.cross_entropy(logits, y[batch])
        (slope,) = torch.autograd.grad(own, inputs, create_graph=True)
        others = F.cross_entropy(logits, mean_y.expand_as(logits))
        ((1 - work.lam) * own + work.lam * others + work.lam * (slope * mean_x).sum()).backward()
        optimiser.step()


def main(job: Job) -> None:
    set_threads(job)
    work, device = job.workload, job.device
    net, (x, y) = module(work, device), tensors(work, device)
    mean_x, mean_y = x.mean(1), F.one_hot(y, work.classes).float().mean(1)
    weights = [p.detach().clone() for p in trained(net)]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    job.start()
    for round_ in range(job.total):
        total = [torch.zeros_like(w) for w in weights]
        for k in work.chosen(round_):
            rows = torch.from_numpy(work.rows(round_, k)).to(device)
            with torch.no_grad():
                for parameter, w in zip(trained(net), weights, strict=True):
                    parameter.copy_(w)
            if job.algorithm == "fedmix":
                means = [(mean_x[sender], mean_y[sender]) for sender in work.senders(round_, k)]
                train_fedmix(net, x[k], y[k], rows, means, work)
            else:
                train(net, x[k], y[k], rows, work)
            with torch.no_grad():
                for t, parameter in zip(total, trained(net), strict=True):
                    t += parameter / work.per_round
        weights = total
        wait()
        job.tick(partial(arrays, weights))
    job.save("plain", arrays(weights), ["torch", "numpy"])


if __name__ == "__main__":
    main(job())
