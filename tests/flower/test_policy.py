"""A client's policy: what it demands of its own means, and how a mistake in it is told."""

import logging
from pathlib import Path

import pytest
import torch

from fedmix.core.errors import BadInput
from fedmix.exchange import Exchange
from fedmix.flower.policy import Policy
from fedmix.flower.refusals import Refused
from fedmix.flower.roster import TooFew
from tests.flower.tasks import EVERYONE, SIZES, light, owners, samples, simulated, start


def test_a_policy_asks_for_larger_groups_and_more_noise(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("least_m = 10\nleast_noise = 0.5\n")
    real = start(policy=str(policy))[1]
    next(real.run(1))
    assert owners(real) == [
        2,
        0,
        3,
        1,
    ]  # of 23, 8, 30 and 12 samples in groups of 10; 8 are too few
    assert real.exchange is not None
    assert real.exchange.releases is not None
    mean = real.exchange.releases.of(3).x[0]
    plain = torch.from_numpy(samples(3, SIZES[3])[0]).mean(0)
    assert 0.05 < float((mean - plain).std()) < 2  # six values of noise 0.5
    again = start(policy=str(policy))[1]
    next(again.run(1))
    assert again.exchange is not None
    assert again.exchange.releases is not None
    assert not torch.equal(
        again.exchange.releases.of(3).x[0], mean
    )  # the seed, which the server knows, does not give it


def test_a_policy_never_weakens_what_was_asked_for() -> None:
    asked = Exchange(m=20, noise=0.4)
    assert Policy(least_m=5, least_noise=0.1).applied(asked, 0, 50) == asked
    assert Policy(least_m=30).applied(Exchange(m=0.5), 0, 50) == Exchange(m=30)
    assert Policy(least_m=30).applied(Exchange(m="all"), 0, 50) == Exchange(m="all")
    with pytest.raises(Refused, match="fewer samples than the 60"):
        Policy(least_m=60).applied(Exchange(m="all"), 0, 50)


def test_a_policy_clips_and_so_puts_noise_on_labels() -> None:
    policy = Policy(least_noise=0.2, most_clip=3.0)
    assert policy.applied(Exchange(m=4), 0, 50).noises == (0.2, 0.2)
    assert [policy.applied(Exchange(m=4, clip=c), 0, 50).clip for c in (None, 2.0, 5.0)] == [
        3.0,
        2.0,
        3.0,
    ]
    both = policy.applied(
        Exchange(m=4, noise=1.0, clip=5.0, label_clip=4.0, label_noise=0.1), 0, 50
    )
    assert (both.clip, both.label_clip, both.noises) == (3.0, 3.0, (1.0, 0.2))


def test_means_that_a_policy_clipped_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("most_clip = 0.5\nleast_noise = 0.01\n")
    real = start(policy=str(path))[1]
    done = next(real.run(1))
    assert (owners(real), done.notes["rejected"]) == ([n // 4 for n in SIZES], 0)
    assert real.exchange is not None
    assert real.exchange.releases is not None
    assert float(real.exchange.releases.x.norm(dim=1).max()) < 0.5 + 10 * 0.01


def test_a_client_that_refuses_by_policy_still_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("share_means = false")
    nodes, real = start(3)
    nodes.add(3, policy=str(policy))
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        *_, last = real.run(2)
    assert "client 3 refuses: its policy lets no means out" in caplog.text
    assert owners(real) == [*(n // 4 for n in SIZES[:3]), 0]
    assert (last.notes["asked"], last.notes["replied"], last.notes["rejected"]) == (4, 4, 0)
    assert len(nodes.of_kind("query.means", 3)) == 1


def test_without_anyones_means_the_run_fails(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("share_means = false")
    with pytest.raises(TooFew, match="no client has sent means"):
        next(start(policy=str(policy))[1].run(1))


def test_without_a_policy_the_pool_is_the_simulations() -> None:
    real = start()[1]
    reference = simulated(light(exchange={"m": 4}, training=EVERYONE))
    next(real.run(1))
    next(reference.run(1))
    assert real.exchange is not None
    assert reference.exchange is not None
    assert real.exchange.pool is not None
    assert reference.exchange.pool is not None
    torch.testing.assert_close(real.exchange.pool.x, reference.exchange.pool.x)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("least_m = 0", "least_m=0 must be a whole number from 1 on"),
        ("least_m = 2.5", "least_m=2.5 must be a whole number"),
        ("least_m = true", "least_m=True must be a whole number"),
        ("least_noise = -1", "least_noise=-1 must be a number from 0 on"),
        ("least_noise = nan", "least_noise=nan must be a number"),
        ("least_noise = inf", "least_noise=inf must be a number"),
        ("least_m = " + "9" * 5000, "is not valid TOML: "),
        ("most_clip = 0", "most_clip=0 must be a number above 0"),
        ("most_clip = inf", "most_clip=inf must be a number above 0"),
        ("share_means = 1", "share_means=1 must be true or false"),
        (
            "refuse = true",
            "'refuse' is not a setting of a policy; known are share_means, least_m, least_noise, "
            "most_clip, most_releases, share_weights, most_rounds, experiments, fedmix, ledger",
        ),
        ("least_m = ", "is not valid TOML"),
        ("a = " + "[" * 40000, "is not valid TOML"),
        ("#" * 65537, "is larger than 64 KiB; give a policy of a few lines"),
    ],
)
def test_a_bad_policy_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=sentence) as told:
        Policy.load(path)
    assert len(str(told.value)) < 400
