"""Group norm in the place of batch norm: a ResNet of torchvision's build trains."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, FedMix, Training
from fedmix.core.types import Params
from fedmix.data import FederatedData, from_arrays
from fedmix.models import Model, group_norm, initialised
from fedmix.training.engines import Engine, Sequential, Vectorised


class BasicBlock(nn.Module):
    """As torchvision has it: two convolutions beside a shortcut, which is added in place."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = (
            nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            if stride != 1 or before != after
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """torchvision's resnet18 with fewer and narrower blocks, and its initialisation."""

    def __init__(self, widths: tuple[int, ...] = (8, 12), classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks = [BasicBlock(widths[0], widths[0])]
        blocks += [BasicBlock(a, b, 2) for a, b in pairwise(widths)]
        self.layers = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(widths[-1], classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = torch.flatten(self.avgpool(self.layers(x)), 1)
        out: Tensor = self.fc(x)
        return out


def pictures() -> FederatedData:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 3, 16, 16)), rng.integers(0, 3, 10)
    return from_arrays(x, y, [range(4), range(4, 10)], (x, y), classes=3)


def test_a_resnet_trains_alike_on_every_engine() -> None:
    net, weights = initialised(lambda: group_norm(ResNet()), 0), list[Params]()
    engines: tuple[Engine, ...] = (Sequential(), Vectorised(), Vectorised(compile=True))
    for engine in engines:
        training = Training(2, batch_size=4, lr=0.05)
        federation = Federation(net, pictures(), FedMix(0.1), training, engine=engine)
        assert federation.compiled == (engine is engines[2])
        list(federation.run(1))
        weights.append(federation.params)
    assert not torch.equal(weights[0]["conv1.weight"], net.state_dict()["conv1.weight"])
    for other in weights[1:]:
        for name, p in weights[0].items():
            torch.testing.assert_close(p, other[name], rtol=1e-3, atol=1e-4)


def test_first_weights_are_those_of_the_same_model_with_group_norm() -> None:
    """Also where the module that `initialised` gets is a copy."""

    def build(norm: nn.Module) -> nn.Module:
        own = nn.Conv2d(8, 4, 1)
        nn.init.constant_(own.weight, 0.5)
        return nn.Sequential(nn.Conv2d(3, 8, 3), norm, own, nn.Flatten(), nn.Linear(4, 2))

    replaced = initialised(lambda: group_norm(build(nn.BatchNorm2d(8))), 0)
    written = initialised(lambda: build(nn.GroupNorm(4, 8)), 0)
    for name, p in written.named_parameters():
        assert torch.equal(p, replaced.get_parameter(name)), name
    assert bool((replaced.get_parameter("2.weight") == 0.5).all())


def test_batch_norm_is_refused_by_its_name() -> None:
    said = r"layer 'bn1' \(BatchNorm2d\).*fedmix.models.group_norm\(module\) puts nn.GroupNorm"
    with pytest.raises(BadInput, match=said):
        Model(ResNet())


def test_every_batch_norm_is_replaced_and_the_module_stays() -> None:
    net = ResNet()
    before = copy.deepcopy(net.state_dict())
    changed = group_norm(net)
    kinds = [type(part) for part in changed.modules()]
    assert kinds.count(nn.GroupNorm) == 1 + 2 + 3
    assert nn.BatchNorm2d not in kinds
    assert [type(part) for part in net.modules()].count(nn.BatchNorm2d) == 6
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(64, 32), (48, 24), (12, 6), (8, 4), (3, 1), (7, 1), (2, 1), (1, 1), (100, 25), (512, 32)],
)
def test_groups_are_the_largest_divisor_with_two_channels_each(channels: int, groups: int) -> None:
    made = group_norm(nn.BatchNorm2d(channels))
    assert isinstance(made, nn.GroupNorm)
    assert made.num_groups == groups
    few = group_norm(nn.BatchNorm2d(64), groups=10)
    assert isinstance(few, nn.GroupNorm)
    assert few.num_groups == 8


def test_weights_are_kept_and_a_layer_that_is_there_twice_stays_one() -> None:
    norm = nn.BatchNorm1d(4, eps=0.1)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    changed = group_norm(nn.Sequential(norm, nn.ReLU(), norm, nn.BatchNorm1d(4, affine=False)))
    assert isinstance(changed, nn.Sequential)
    assert changed[0] is changed[2]
    first = changed[0]
    assert isinstance(first, nn.GroupNorm)
    assert (first.weight.tolist(), first.eps) == ([1.0, 2.0, 3.0, 4.0], 0.1)
    assert changed[3].weight is None


def test_what_cannot_be_replaced_is_refused() -> None:
    for wrong, said in (
        (nn.Sequential(nn.BatchNorm1d(1)), r"layer '0' \(BatchNorm1d\) normalises a single number"),
        (nn.Sequential(nn.LazyBatchNorm2d()), r"does not know its channels yet; call the module"),
        (nn.BatchNorm2d, "give an instance of an nn.Module"),
    ):
        with pytest.raises(BadInput, match=said):
            group_norm(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="groups=0 must be at least 1"):
        group_norm(nn.BatchNorm2d(4), groups=0)
