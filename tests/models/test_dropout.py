"""Dropout layers: masks from a key, the same for the same key, and the user's own layers left as
they were.
"""

import pytest
import torch
from torch import nn

from fedmix import Federation, Supervised, Training
from fedmix.models import Model
from tests.synthetic import arrays

KEY = torch.tensor(12345)


def test_dropout_is_keyed() -> None:
    model = Model(nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)))
    params, x = model.init(), torch.ones(6, 4)
    one, same, other, none = (model(params, x, k) for k in (KEY, KEY, KEY + 1, None))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
    assert not torch.allclose(one, none)
    plain = (x @ params["0.weight"].T + params["0.bias"]) @ params["2.weight"].T + params["2.bias"]
    torch.testing.assert_close(none, plain)


def test_dropout_scales_what_survives() -> None:
    """At rate 0.2, one value in five is 0 and the others are divided by 0.8 (4,000 values:
    deviation 0.0063).
    """
    model = Model(nn.Sequential(nn.Identity(), nn.Dropout(0.2)))
    out = model({}, torch.ones(40, 100), KEY)
    assert set(out.flatten().tolist()) == {0.0, 1.25}
    assert abs(float((out == 0).float().mean()) - 0.2) < 5 * 0.0063
    assert torch.equal(model({}, torch.ones(40, 100)), torch.ones(40, 100))


@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.Dropout1d, (20, 30, 5)), (nn.Dropout2d, (20, 30, 2, 3))]
)
def test_whole_channels_are_dropped(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    model = Model(nn.Sequential(nn.Identity(), kind(0.5)))
    out = model({}, torch.ones(shape), KEY).flatten(2)
    assert bool((out == out[:, :, :1]).all())
    assert len({tuple(channels) for channels in out[:, :, 0].tolist()}) == 20  # each sample its own
    assert abs(float((out[:, :, 0] == 0).float().mean()) - 0.5) < 5 * (0.25 / 600) ** 0.5
    single = Model(nn.Sequential(nn.Identity(), nn.Dropout(0.5)))(
        {}, torch.ones(shape), KEY
    ).flatten(2)
    assert not bool((single == single[:, :, :1]).all())


def test_two_dropout_layers_have_different_masks() -> None:
    model = Model(nn.Sequential(nn.Dropout(0.5), nn.Identity(), nn.Dropout(0.5)))
    first = model.head(1)({}, torch.ones(10, 100), KEY) == 0
    second = model.tail(2)({}, torch.ones(10, 100), KEY) == 0
    agree = float((first == second).float().mean())
    assert abs(agree - 0.5) < 5 * (0.25 / 1000) ** 0.5


def test_a_dropout_layer_used_twice_works() -> None:
    drop = nn.Dropout(0.5)
    model = Model(nn.Sequential(nn.Linear(4, 40), drop, nn.Linear(40, 40), drop, nn.Linear(40, 3)))
    params, x = model.init(), torch.ones(6, 4)
    assert torch.equal(model(params, x, KEY), model(params, x, KEY))


def test_a_rate_of_one_drops_everything() -> None:
    """As nn.Dropout(1.0) does, and not NaN."""
    out = Model(nn.Sequential(nn.Identity(), nn.Dropout(1.0)))({}, torch.ones(4, 5), KEY)
    assert out.tolist() == [[0.0] * 5] * 4


def test_the_users_module_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    before = {n: p.clone() for n, p in module.state_dict().items()}
    data = arrays()
    federation = Federation(module, data, Supervised(), Training(2, lr=1.0))
    list(federation.run(1))
    assert isinstance(module[1], nn.Dropout)
    assert not module.training
    assert all(torch.equal(p, before[n]) for n, p in module.state_dict().items())
    assert not torch.equal(federation.params["0.weight"], before["0.weight"])
