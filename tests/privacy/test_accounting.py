"""(ε, δ) of released means: against hand-worked sensitivities, closed forms, another accountant,
and counts of real releases.
"""

import itertools
import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmix import BadInput, Exchange, Federation, FedMix, Hidden, Objective, Supervised, Training
from fedmix.data import FederatedData, Ragged, from_arrays
from fedmix.data.transforms import Images, OneHot, Plain
from fedmix.exchange import MeanExchange, Means, release
from fedmix.exchange.pool import to_shares
from fedmix.objectives import GlobalMix
from fedmix.privacy import Guarantee, calibrated, guarantee, guarantee_of, sensitivity
from fedmix.privacy.accounting import nonnegative, upwards
from tests.synthetic import one_after_another

Array = np.ndarray[Any, Any]


def delta_of(mu: float, epsilon: float) -> float:
    """The analytic Gaussian mechanism: Balle & Wang (2018), Theorem 8, with Δ/σ = μ."""

    def normal_cdf(t: float) -> float:
        return math.erfc(-t / math.sqrt(2)) / 2

    return normal_cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal_cdf(
        -mu / 2 - epsilon / mu
    )


def released(x: Array, y: Tensor, how: Exchange, *, grouping: int = 0, noise: int = 1) -> Means:
    def plain(raw: Array) -> Tensor:
        return torch.from_numpy(raw)

    means = release(
        0, x, y, how, plain, np.random.default_rng(grouping), np.random.default_rng(noise)
    )
    assert means is not None
    return means


# Clipping and noise


def test_clipped_together_by_hand() -> None:
    """(3, 4) with a label of norm 12 has norm 13; a bound of 6.5 halves both, and leaves (0, 3 | 4)
    of norm 5 alone.
    """
    x, y = np.array([[3.0, 4.0], [0.0, 3.0]]), torch.tensor([[12.0, 0.0], [0.0, 4.0]])
    means = released(x, y, Exchange(clip=6.5))
    assert means.x.tolist() == [[0.75, 2.5]]
    assert means.y.tolist() == [[3.0, 2.0]]


def test_what_is_no_number_counts_as_nothing() -> None:
    """In an input and in a label, without harm to what stands beside it."""
    odd = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [-math.inf, 1.0]])
    means = released(odd.numpy(), odd, Exchange(clip=9.0))
    assert means.x.tolist() == means.y.tolist() == [[0.0, 1.0]]


def test_clipped_apart_by_hand() -> None:
    x, y = (
        np.array([[3.0, 4.0], [0.0, 0.0], [math.nan, math.inf]]),
        torch.tensor([[2.0, 0.0], [0.0, 0.5], [0.0, 0.0]]),
    )
    means = released(x, y, Exchange(clip=1.0, label_clip=1.0, label_noise=0.0))
    torch.testing.assert_close(means.x, torch.tensor([[0.2, 0.8 / 3]]))
    torch.testing.assert_close(means.y, torch.tensor([[1 / 3, 0.5 / 3]]))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Exchange(noise=0.3, clip=9.0), 0.3),
        (Exchange(noise=0.3, clip=9.0, label_clip=9.0, label_noise=2.0), 2.0),
    ],
)
def test_labels_are_noised_with_a_bound_and_inputs_as_before(
    how: Exchange, expected: float
) -> None:
    """n·s²/σ² is chi-square with n degrees, so s²/σ² deviates from 1 by sqrt(2/n)."""
    x, y = np.ones((300, 2)), torch.ones(300, 40)
    noisy, papers = released(x, y, replace(how, m=1)), released(x, y, Exchange(m=1, noise=0.3))
    assert torch.equal(noisy.x, papers.x)
    drawn = (noisy.y - 1).numpy()
    assert abs((drawn**2).mean() / expected**2 - 1) < 5 * math.sqrt(2 / drawn.size)
    assert abs(
        np.corrcoef(drawn[:, :2].ravel(), (noisy.x - 1).numpy().ravel())[0, 1]
    ) < 5 / math.sqrt(600)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=1, max_size=5))
def test_shares(rows: list[list[float]]) -> None:
    """The projection onto shares is max(y - t, 0) with the one t that makes the sum 1; bisection
    finds it too.
    """
    y = torch.tensor(rows, dtype=torch.float64)
    for vector, ours in zip(y.numpy(), to_shares(y).numpy(), strict=True):
        low, high = vector.max() - 1, vector.max()
        for _ in range(60):
            t = (low + high) / 2
            low, high = (t, high) if np.maximum(vector - t, 0).sum() > 1 else (low, t)
        np.testing.assert_allclose(ours, np.maximum(vector - low, 0), atol=1e-9)


def test_a_pool_holds_shares_where_labels_are_noised() -> None:
    x, y = np.zeros((12, 2)), np.arange(12) % 3
    data = from_arrays(x, y, one_after_another((6, 6)), (x, y), classes=3)
    mean = MeanExchange(Exchange(m=2, clip=1.0, noise=2.0), 0, 2)
    mean.refresh(data, data.units)
    assert mean.pool is not None
    assert mean.releases is not None
    assert float(mean.releases.y.min()) < 0  # what left the clients is as noised as was said
    assert float(mean.pool.y.min()) >= 0
    torch.testing.assert_close(mean.pool.y.sum(1), torch.ones(6))


def test_shares_of_large_values() -> None:
    """1e8 and 1e8 − 1 are one number in single precision; the nearest shares are (1, 0) still."""
    assert to_shares(torch.tensor([[1e8, 0.0]])).tolist() == [[1.0, 0.0]]


# Sensitivity


def test_sensitivity_by_hand() -> None:
    assert sensitivity(3.0, 10) == pytest.approx(0.6)
    assert sensitivity(3.0, 10, nonnegative=True) == pytest.approx(0.3 * math.sqrt(2))
    assert sensitivity(3.0, 10, level="client") == pytest.approx(6.0)


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    nonneg=st.booleans(),
    together=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_no_sample_moves_the_means_further(
    sizes: tuple[int, int], nonneg: bool, together: bool, seed: int
) -> None:
    """Random data, one sample replaced: inputs and labels move by at most the sensitivity."""
    count, m = max(sizes), min(sizes)
    rng = np.random.default_rng(seed)
    x, y = (
        rng.standard_normal((count, 3)) * 10.0 ** rng.integers(-2, 3, (count, 1)),
        rng.standard_normal((count, 2)),
    )
    x, y = (np.abs(x), np.abs(y)) if nonneg else (x, y)
    other_x, other_y, at = x.copy(), y.copy(), rng.integers(count)
    other_x[at], other_y[at] = other_x[at - 1] * (1 if nonneg else -1), other_y[at - 1][::-1]
    how = (
        Exchange(m=m, clip=2.0)
        if together
        else Exchange(m=m, clip=2.0, label_clip=0.5, label_noise=0.0)
    )
    one, two = (
        released(x, torch.from_numpy(y), how),
        released(other_x, torch.from_numpy(other_y), how),
    )
    moved = [float((a - b).norm()) for a, b in zip(one, two, strict=True)]
    bounds = [sensitivity(clip, m, nonnegative=nonneg) for clip in (2.0, 0.5)]
    found = [math.hypot(*moved)] if together else moved
    assert all(f <= bound * (1 + 1e-5) for f, bound in zip(found, bounds, strict=False))


def test_adding_a_sample_to_the_only_mean() -> None:
    """All means of five samples of ±1 against those of the four without sample 0: none moves by
    more than D / 5.
    """
    values = np.array(list(itertools.product([-1.0, 1.0], repeat=5)))
    assert np.abs(values.mean(1) - values[:, 1:].mean(1)).max() == pytest.approx(
        sensitivity(1.0, 5)
    )


# ε and δ


def test_two_normals_one_deviation_apart() -> None:
    """μ = 1: δ at ε = 1 is Φ(-1/2) - e·Φ(-3/2) = 0.30853754 - e · 0.06680720."""
    found = guarantee(Exchange(clip=1.0, noise=2.0), 1, 0.30853754 - math.e * 0.06680720)
    assert [found.mu, found.epsilon] == pytest.approx([1.0, 1.0], abs=1e-6)
    assert str(replace(found, delta=0.127)) == (
        "(1, 0.127)-differential privacy of the means for one sample replaced, over one release."
    )


def test_a_guarantee_in_words() -> None:
    found = Guarantee(2.0, 1e-5, 0.5, neighbours="add-remove", releases=3)
    said = "of the means for one sample added or removed, over 3 releases."
    assert str(found) == f"(2, 1e-05)-differential privacy {said}"


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-3), (0.5, 1e-5), (1, 1e-5), (2, 1e-6), (8, 1e-5), (16, 1e-7)]
)
@pytest.mark.parametrize("apart", [False, True])
def test_the_analytic_gaussian_mechanism(epsilon: float, delta: float, apart: bool) -> None:
    """The least noise for (ε, δ), put into Balle & Wang's formula, gives δ back; the classical
    bound asks for more.
    """
    how = (
        Exchange(m=7, clip=3.0, label_clip=1.0, label_noise=1.0)
        if apart
        else Exchange(m=7, clip=3.0)
    )
    found = calibrated(how, epsilon, 7, delta, releases=4)
    shifts = zip((6 / 7, 2 / 7) if apart else (6 / 7,), found.noises, strict=False)
    mu = math.sqrt(4 * sum((by / sigma) ** 2 for by, sigma in shifts))
    assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    back = guarantee(found, 7, delta, releases=4)
    assert [back.mu, back.epsilon] == pytest.approx([mu, epsilon])
    if epsilon < 1 and not apart:  # Dwork & Roth (2014), Theorem A.1, for one release
        assert (
            calibrated(how, epsilon, 7, delta).noise
            < math.sqrt(2 * math.log(1.25 / delta)) * (6 / 7) / epsilon
        )


@pytest.mark.parametrize(("noise", "releases"), [(0.5, 1), (2.0, 10), (8.0, 40)])
def test_another_accountant(noise: float, releases: int) -> None:
    """Privacy loss distributions, composed release by release and rounded up, come to no less, and
    to little more.
    """
    other = PLDAccountant()
    other.compose(GaussianDpEvent(noise), releases)
    ours = guarantee(Exchange(m=2, clip=1.0, noise=noise), 2, releases=releases).epsilon
    assert ours <= other.get_epsilon(1e-5) <= ours * 1.001 + 1e-4


@pytest.mark.parametrize("apart", [False, True])
def test_monte_carlo(apart: bool) -> None:
    """40,000 real releases of each of two neighbours: how often the event that tells them best
    apart happens gives δ.
    """
    n, epsilon = 40_000, 1.0
    how = Exchange(m=1, clip=1.0, noise=1.3)
    if apart:
        how = replace(how, clip=0.8, label_clip=1.0, label_noise=2.0)
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    inputs = np.array([[0.6, 0.0], [0.0, 0.9]])
    clean: list[Means] = []
    drawn: list[Means] = []
    for x, y in zip(inputs, labels, strict=True):
        tiled, label = np.tile(x, (n, 1)), y.expand(n, 2)
        clean.append(
            released(
                tiled[:1], label[:1], replace(how, noise=0.0, label_noise=0.0 if apart else None)
            )
        )
        drawn.append(released(tiled, label, how, noise=len(drawn)))

    def loss(seen: Means) -> Array:
        """The log of how much likelier the first neighbour is than the second."""
        parts = [
            ((values - b) ** 2 - (values - a) ** 2).sum(1) / (2 * sigma**2)
            for values, a, b, sigma in zip(seen, clean[0], clean[1], how.noises, strict=True)
        ]
        return np.asarray(sum(parts))

    p, q = ((loss(seen) > epsilon).mean() for seen in drawn)
    estimate, deviation = (
        p - math.exp(epsilon) * q,
        math.sqrt((p * (1 - p) + math.exp(2 * epsilon) * q * (1 - q)) / n),
    )
    mu = math.sqrt(
        sum(float(((a - b) ** 2).sum()) / s**2 for a, b, s in zip(*clean, how.noises, strict=True))
    )
    assert abs(estimate - delta_of(mu, epsilon)) < 4 * deviation
    assert mu <= guarantee(how, 1, nonnegative=True).mu * (
        1 + 1e-6
    )  # the pair is a case, not the worst one


@pytest.mark.parametrize(
    ("noise", "factor", "group", "delta"),
    [(0.1, 1.01, 1, 1e-9), (10.0, 3.0, 2, 1e-5), (2.0, 10.0, 50, 1e-6)],
)
@pytest.mark.parametrize("several", [False, True])
def test_what_gives_more_privacy(
    noise: float, factor: float, group: int, delta: float, several: bool
) -> None:
    how = Exchange(m=5 if several else "all", clip=3.0, noise=noise)
    base = guarantee(how, group, delta).epsilon
    assert guarantee(replace(how, noise=noise * factor), group, delta).epsilon < base
    assert guarantee(replace(how, clip=3 / factor), group, delta).epsilon < base
    assert guarantee(how, group + 1, delta).epsilon < base
    assert guarantee(how, group, delta * factor).epsilon < base
    assert guarantee(how, group, delta, nonnegative=True).epsilon < base
    assert guarantee(how, group, delta, releases=2).epsilon > base
    if not several:
        assert group == 1 or guarantee(how, group, delta, neighbours="add-remove").epsilon == base
        assert guarantee(how, group, delta, level="client").epsilon >= base


# What is not guaranteed, and what is refused

CLIPPED = Exchange(clip=1.0, noise=1.0)


@pytest.mark.parametrize(
    ("how", "where", "reason"),
    [
        (Exchange(m=1), {}, "no noise .* with exchange.m=1 they are raw samples"),
        (Exchange(clip=1.0), {}, r"the means carry no noise \(exchange.noise\)\.$"),
        (Exchange(noise=1.0), {}, "not clipped"),
        (replace(CLIPPED, label_clip=1.0, label_noise=0.0), {}, "labels carry no noise"),
        (replace(CLIPPED, m=5, split="class"), {}, "groups are made by label"),
        (replace(CLIPPED, m=5), {"level": "client"}, "exchange.m='all' only"),
        (CLIPPED, {"level": "client", "neighbours": "add-remove"}, "replaced but not left out"),
        (
            replace(CLIPPED, m=0.5),
            {"neighbours": "add-remove"},
            "which samples are averaged together",
        ),
        (replace(CLIPPED, m=1), {"neighbours": "add-remove"}, "how many means there are"),
    ],
)
def test_no_guarantee(how: Exchange, where: dict[str, Any], reason: str) -> None:
    found = guarantee(how, 5, 0.01, releases=3, **where)
    assert not found
    told = {"level": "sample", "neighbours": "replace", **where}
    assert found == Guarantee(math.inf, 0.01, math.inf, releases=3, reason=found.reason, **told)
    assert str(found).startswith("None: ")
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(str(found))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"delta": 0.0}, "delta=0.0 must lie between 0 and 1"),
        ({"delta": 1.0}, "delta=1.0 must lie between 0 and 1"),
        ({"delta": math.nan}, "delta=nan must lie between 0 and 1"),
        ({"releases": 0}, "releases=0 must be at least 1"),
        ({"group": 0}, "group=0 must be at least 1"),
    ],
)
def test_bad_input(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        guarantee(CLIPPED, **{"group": 5, **wrong})
    with pytest.raises(BadInput, match=said):
        calibrated(CLIPPED, 1.0, **{"group": 5, **wrong})


def test_what_no_noise_can_mend() -> None:
    with pytest.raises(BadInput, match="no noise gives a guarantee: samples are not clipped"):
        calibrated(Exchange(), 1.0, 5)
    with pytest.raises(BadInput, match=r"clip=0\.0 must be positive and finite"):
        sensitivity(0.0, 5)


def test_without_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(BadInput, match=r"run: pip install 'fedmix\[privacy\]'"):
        guarantee(CLIPPED, 5)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_bad_epsilon(epsilon: float) -> None:
    with pytest.raises(BadInput, match="epsilon="):
        calibrated(CLIPPED, epsilon, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"clip": math.inf},
        {"label_clip": 1.0},
        {"clip": 1.0, "label_noise": 1.0},
        {"label_noise": -1.0},
        {"noise": 1e31},
        {"noise": math.nan},
    ],
)
def test_bad_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"exchange\.(clip|label|noise)"):
        Exchange(**wrong)


# Over the rounds of a run


def made() -> FederatedData:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 3)), rng.integers(0, 2, 20)
    return from_arrays(x, y, one_after_another((4, 6, 5)), (x, y), classes=2)


def federation(objective: Objective | None = None, **more: Any) -> Federation:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    settings: dict[str, Any] = {"exchange": CLIPPED, "data": made()} | more
    return Federation(
        net,
        settings.pop("data"),
        objective or FedMix(lam=0.1),
        Training(clients_per_round=2),
        **settings,
    )


def test_hardly_any_noise_promises_nothing() -> None:
    for noise in (5e-324, 1e-160, 1e-7):
        assert "the noise is too small" in str(guarantee(Exchange(clip=1.0, noise=noise), 1))
    found = guarantee(Exchange(clip=1.0, noise=1e-7), 1, 0.01, releases=4, level="client")
    assert (found.epsilon, found.delta, found.releases) == (math.inf, 0.01, 4)
    assert (found.level, found.neighbours) == ("client", "replace")
    assert found.mu == pytest.approx(2 * 2 / 1e-7)
    assert guarantee(Exchange(clip=0.5, noise=1e-6), 1)  # μ is 1e6, and promises little enough
    assert not guarantee(Exchange(clip=0.5, noise=1 / 1_000_000.5), 1)


def test_a_client_moves_a_mean_as_far_as_all_its_samples() -> None:
    """One of 5 samples within 3 moves their mean by 6/5 of the noise of 2, and all of them by 6."""
    how = Exchange(clip=3.0, noise=2.0)
    assert guarantee(how, 5, 0.01).mu == pytest.approx(6 / 5 / 2)
    assert guarantee(how, 5, 0.01, level="client").mu == pytest.approx(6 / 2)
    assert guarantee(how, 5, 0.01, level="client").delta == 0.01


def test_noise_for_values_that_are_not_negative() -> None:
    """They lie √2·C apart where others lie 2·C, and so need 1/√2 of the noise."""
    found = calibrated(CLIPPED, 1.0, 5, nonnegative=True)
    assert found.noise == pytest.approx(calibrated(CLIPPED, 1.0, 5).noise / math.sqrt(2))


def test_noise_on_labels_is_found_where_there_was_none() -> None:
    """Both bounds are 1, so that half of μ² each asks for one noise on both."""
    found = calibrated(Exchange(clip=1.0, label_clip=1.0, label_noise=0.0), 1.0, 5)
    assert found.label_noise == found.noise > 0


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        (1231.0, "1.24e+03"),
        (1.0001, "1.01"),
        (2.0, "2"),
        (0.1231, "0.124"),
        (0.0, "0"),
        (math.inf, "inf"),
    ],
)
def test_what_is_said_is_rounded_up(epsilon: float, said: str) -> None:
    assert upwards(epsilon) == said


def test_releases_are_counted() -> None:
    """Client 0 sends three times, once with 3 samples: μ² is that of three releases with means of
    3.
    """
    run = federation(
        changes=lambda r: {0: [0, 1, 15]} if r == 1 else {0: [0, 1, 2, 3, 15]} if r == 2 else {}
    )
    assert guarantee_of(run).mu == pytest.approx(2 / 4)
    list(run.run(2))
    assert guarantee_of(run).mu == pytest.approx(math.sqrt(2) * 2 / 3)
    again = federation(changes=run.changes)
    again.restore(run.state())
    list(again.run(4))
    assert again.exchange is not None
    assert (again.exchange.sent.tolist(), again.exchange.smallest) == ([3, 1, 1], 3)
    found = guarantee_of(again)
    assert [found.releases, found.mu] == pytest.approx([3, math.sqrt(3) * 2 / 3])


def test_a_sample_whose_group_changes_from_release_to_release_by_hand() -> None:
    """Six samples in three groups of 2. Sample 0 at the bound C = 3 is opposite in the other data,
    with the same label, so each release moves the one mean that holds it by 2·3/2 = 3, whoever is
    in its group; three releases together by 3√3. With σ = 1.5, μ = 2√3, and ε follows from μ.
    """
    x, y = np.random.default_rng(0).normal(size=(6, 4)), torch.zeros(6, 2)
    x[0] *= 3 / np.linalg.norm(x[0])
    other, how = x.copy(), Exchange(m=2, clip=3.0, noise=1.5)
    other[0] = -x[0]
    moved, homes = [], set()
    for grouping in range(3):
        one, two = (
            released(values, y, replace(how, noise=0.0), grouping=grouping) for values in (x, other)
        )
        by = (one.x - two.x).norm(dim=1)
        moved.append(float(by.norm()))
        homes.add(tuple(one.x[by.argmax()].tolist()))
    assert moved == pytest.approx([3.0] * 3)
    assert len(homes) > 1  # the rest of its group was another
    found = guarantee(how, 2, releases=3)
    assert found.mu == pytest.approx(math.hypot(*moved) / 1.5) == pytest.approx(2 * math.sqrt(3))
    assert delta_of(found.mu, found.epsilon) == pytest.approx(1e-5, rel=1e-3)


@dataclass(frozen=True)
class Mine(Plain):
    """A transform that is not known here."""


def test_why_a_run_guarantees_nothing() -> None:
    assert "weights carry no guarantee" in str(
        guarantee_of(federation(Supervised(), exchange=None))
    )
    assert "weights carry no guarantee" in str(
        guarantee_of(federation(exchange=replace(CLIPPED, source="own")))
    )
    assert "raw samples of all clients" in str(
        guarantee_of(federation(GlobalMix(alpha=1.0), exchange=None))
    )
    assert "code of your own (Mine)" in str(
        guarantee_of(federation(data=replace(made(), transform=Mine())))
    )
    assert "weights that were trained on the samples" in str(
        guarantee_of(federation(Hidden(FedMix(lam=0.1), 2)))
    )
    assert "there twice" in str(guarantee_of(federation(data=made().with_clients({0: [0, 0, 1]}))))
    assert "there twice" in str(
        guarantee_of(federation(data=made().with_clients({0: [0, 1], 1: [1, 2]})))
    )


def test_only_pixels_and_characters_are_known_not_to_be_negative() -> None:
    """Two opposite samples at the bound lie 2·C apart, whatever the transform is called."""
    x, y, images = np.zeros((4, 2, 2, 1), np.uint8), np.arange(4) % 2, Images((0.5,), (0.5,))
    pixels = FederatedData(x, y, Ragged.of([[0, 1], [2, 3]]), classes=2, transform=images)
    assert nonnegative(pixels)
    for values in (x.astype(np.int8), x.astype(np.float32)):
        assert not nonnegative(replace(pixels, x=values))
    assert not nonnegative(made())
    text = x[..., 0, 0]
    assert nonnegative(replace(pixels, x=text, transform=OneHot(3)))


def test_a_sample_that_goes_from_client_to_client() -> None:
    """Releases are counted by client, and row 15 is first with client 0, then with nobody, then
    with client 1.
    """
    steps: list[dict[int, list[int]]] = [{}, {0: [0, 1, 15]}, {0: [0, 1]}, {1: [4, 5, 15]}]
    run = federation(changes=lambda r: steps[r] if r < 4 else {})
    list(run.run(3))
    assert guarantee_of(run)
    again = federation(changes=run.changes)
    again.restore(run.state())
    for went_on in (run, again):
        list(went_on.run(4))
        assert "went from one to another" in str(guarantee_of(went_on))


def test_a_client_that_one_sample_less_would_silence() -> None:
    """The neighbour of a client with as many samples as `cutoff` asks for sends no mean at all."""
    for cutoff in (1, 5):
        how = replace(CLIPPED, cutoff=cutoff)
        assert "would send nothing" in str(guarantee(how, cutoff, neighbours="add-remove"))
        assert (
            guarantee(how, cutoff + 1, neighbours="add-remove").epsilon
            == guarantee(how, cutoff + 1).epsilon
        )


def test_extremes_end_in_numbers() -> None:
    """So much noise that δ covers all, and ε at both ends, without warnings (which are errors
    here).
    """
    assert guarantee(replace(CLIPPED, noise=1e30), 5).epsilon == 0
    for epsilon in (1e-9, 500.0):
        assert delta_of(2 / 5 / calibrated(CLIPPED, epsilon, 5).noise, epsilon) == pytest.approx(
            1e-5, rel=1e-3
        )
    assert calibrated(CLIPPED, 1e-12, 5, 1e-15).noise > calibrated(CLIPPED, 1e-9, 5).noise


@pytest.mark.parametrize("wrong", [
    {"level": "Client"}, {"level": "clients"}, {"level": ["client"]}, {"neighbours": "add_remove"},
    {"neighbours": "Replace"}, {"nonnegative": "no"}, {"nonnegative": 1}, {"group": True},
    {"group": 5.0}, {"releases": 2.5}, {"releases": True}, {"delta": "1e-5"}, {"delta": True},
], ids=str)  # fmt: skip
def test_a_promise_is_made_of_known_words_and_numbers_only(wrong: dict[str, Any]) -> None:
    """Another word was taken for the one that promises more: "Client" for "sample", "add_remove"
    for "replace".
    """
    [field] = wrong
    how, given = Exchange(clip=4.0, noise=0.3), {"group": 70, **wrong}
    with pytest.raises(BadInput, match=field):
        guarantee(how, **given)
    if field in ("level", "nonnegative", "group"):
        with pytest.raises(BadInput, match=field):
            sensitivity(4.0, **given)
    if field not in ("level", "neighbours"):
        with pytest.raises(BadInput, match=field):
            calibrated(how, 1.0, **given)
    if field in ("level", "neighbours", "delta"):
        for run in (
            federation(),
            federation(Supervised(), exchange=None),
        ):  # also where nothing is promised
            with pytest.raises(BadInput, match=field):
                guarantee_of(run, **wrong)


def test_a_client_and_an_added_sample_are_promised_less() -> None:
    """By hand: one of 70 samples moves the mean by √2·4/70, a client by √2·4; 70 is not above a
    cut-off of 70.
    """
    how = Exchange(clip=4.0, noise=0.3)
    assert guarantee(how, 70, nonnegative=True).mu == pytest.approx(math.sqrt(2) * 4 / 70 / 0.3)
    assert guarantee(how, 70, nonnegative=True, level="client").mu == pytest.approx(
        math.sqrt(2) * 4 / 0.3
    )
    assert not guarantee(replace(how, m=5), 5, neighbours="add-remove")
