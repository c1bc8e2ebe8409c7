"""A model that has lost what it had learned: when it is noticed, what is said, and that its run
ends there.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmix import (
    Collapsed,
    Diverged,
    DPFedAvg,
    Experiment,
    FedAdam,
    FedAvg,
    FedMix,
    Hidden,
    LocalMix,
    NaiveMix,
    Objective,
    Proximal,
    Run,
    Supervised,
)
from fedmix.experiment.presets import experiment
from fedmix.training.failures import blamed, collapsed, guessing_level, stop_if_collapsed, warning
from tests.runs.test_runs import interrupted_at
from tests.test_cli import fedmix

# FEMNIST, FedMix with λ = 0.2, of which 152 of 1,675 test samples are of the most common class:
# rounds 19 and 29 to 39.
FEMNIST = [
    0.5833,
    0.1648,
    0.0949,
    0.0979,
    0.1319,
    0.1081,
    0.126,
    0.1224,
    0.1188,
    0.1027,
    0.0913,
    0.1033,
]


@pytest.mark.parametrize(
    ("history", "level", "noticed"),
    [
        (FEMNIST, 152 / 1675, True),
        (FEMNIST[:-1], 152 / 1675, False),
        ([0.3, 0.56, *[0.1] * 10], 0.1, True),
        ([0.3, 0.56, *[0.1] * 9], 0.1, False),
        ([0.1] * 50, 0.1, False),
        ([0.25, *[0.1] * 50], 0.1, False),  # two of ten classes by luck
        ([0.56, *[0.1] * 9, 0.3, *[0.1] * 9], 0.1, False),  # it jumps
        ([0.56, *[0.15] * 50], 0.1, False),  # more than a twentieth of the way
        ([0.61, *[0.5] * 10], 0.5, True),
        ([0.59, *[0.5] * 10], 0.5, False),
        ([1.0] * 50, 1.0, False),  # one class only, of which nothing can be learned
    ],
)
def test_histories_by_hand(history: list[float], level: float, noticed: bool) -> None:
    assert collapsed(history, level) == noticed


@pytest.mark.parametrize(
    ("counts", "level"),
    [
        ([28, 2], None),  # one more sample right, and it would have learned
        ([200, 200], None),
        ([201, 201], 0.5),
        ([9900, 100], None),
        ([36] * 10, 0.1),
        ([50], None),
    ],
)
def test_few_samples_are_not_judged(counts: list[int], level: float | None) -> None:
    """A fifth of the way has to be more than four standard deviations: of n samples with a share p,
    n > 400 p / (1 − p).
    """
    assert guessing_level(np.repeat(np.arange(len(counts)), counts)) == level


shares = st.floats(0, 1)


@given(
    st.lists(shares, max_size=15),
    shares,
    st.lists(shares, min_size=10, max_size=10),
    st.floats(0, 0.99),
    st.integers(0, 9),
)
def test_ten_bad_tests_in_a_row_after_a_good_one(
    before: list[float], good: float, bad: list[float], level: float, at: int
) -> None:
    """`good` and `bad` are brought to where they are clearly so; whatever was before does not
    matter.
    """
    learned, lost = 1 - (1 - level) * 0.79 * good, [level * b for b in bad]
    assert collapsed([*before, learned, *lost], level)
    assert not collapsed([*before, learned, *lost[1:]], level)
    assert not collapsed(
        [*before, learned, *lost[:at], level + 0.06 * (1 - level), *lost[at + 1 :]], level
    )


LOGITS = ", or take FedMix's logits form (objective.expand=logits)"


@pytest.mark.parametrize(
    ("objective", "lower"),
    [
        (FedMix(0.2), f", weight decay or lam{LOGITS}"),
        (Proximal(0.1) + FedMix(0.2), f", weight decay, lam or mu{LOGITS}"),
        (Hidden(FedMix(0.2) + Proximal(0.1), 1), f", weight decay, lam or mu{LOGITS}"),
        (FedMix(0.2, expand="logits"), ", weight decay or lam"),
        (NaiveMix(0.2), ", weight decay or lam"),
        (LocalMix(alpha=1.0), " or weight decay"),
        (Supervised(), " or weight decay"),
    ],
)
def test_the_sentence(objective: Objective, lower: str) -> None:
    tests = list(zip([20, *range(50, 61)], [0.5612, *[0.0956] * 11], strict=True))
    stop_if_collapsed(tests[:10], 0.099, objective)
    with pytest.raises(Collapsed) as caught:
        stop_if_collapsed(tests, 0.099, objective)
    assert caught.value.round == 60
    assert str(caught.value) == (
        "after round 60 the model is hardly better than a guess: 9.6 % at most in the last ten "
        "tests, where always naming the "
        "most common class gives 9.9 %, after 56.1 % in round 20; lower the learning rate, "
        f"momentum{lower}"
    )


def collapsing(**settings: object) -> Experiment:
    """Weight decay that takes more than training gives: a model of a round or two, then none."""
    decaying = {
        "training.lr": 0.05,
        "training.weight_decay": 1.0,
        "training.momentum": 0.0,
        "training.epochs": 1,
    }
    dealt = {
        "data.clients": 10,
        "data.partition": "iid",
        "training.clients_per_round": 2,
        "rounds": 30,
    }
    return experiment("digits", "fedavg").with_settings(decaying | dealt | settings)


def ends(run: Run) -> tuple[str, list[float]]:
    """What is said of a run that collapses, and its accuracies."""
    with pytest.raises(Collapsed) as caught:
        run.execute()
    assert run.summary is None
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, caught.value.round + 1))
    return str(caught.value), [line["accuracy"] for line in lines]


def test_a_run_ends_where_it_collapsed_also_if_it_was_stopped_before(tmp_path: Path) -> None:
    """Stopped when what it had learned is already lost, and in its last round."""
    said, accuracies = ends(Run(collapsing(), tmp_path / "whole"))
    rounds = len(accuracies)
    assert accuracies[0] > 0.3
    assert max(accuracies[-10:]) < 0.12 <= accuracies[-11]
    for stop in (4, rounds):
        interrupted_at(tmp_path / str(stop), collapsing(), stop)
        assert ends(Run(collapsing(), tmp_path / str(stop))) == (said, accuracies)
    short = Run(collapsing(rounds=rounds), tmp_path / "short")  # whose last round it is
    assert ends(short) == ends(short) == (said, accuracies)


def test_a_run_that_never_learned_is_done_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [
        "run",
        "digits",
        "--algorithm",
        "fedavg",
        "--rounds",
        2,
        "--set",
        "training.weight_decay=50",
        "--out",
        tmp_path,
    ]
    assert fedmix(monkeypatch, *args, "--quiet") == 0
    [folder] = tmp_path.iterdir()
    said = json.loads((folder / "summary.json").read_text())["warning"]
    assert capsys.readouterr().err == f"{folder.name}: {said}\n"
    assert said.endswith(
        " % at most in the last tests, where always naming the most common class gives 10.3 %"
    )
    assert warning([0.1, 0.2], 0.1) is None
    assert warning([], 0.1) is None


def test_no_server_step_is_blamed_for_the_first_round() -> None:
    """It has made no weights yet; in round 2 it has, and with noise on updates that is told too."""
    first, second = (Diverged(round_, 4, 0, "its loss is NaN") for round_ in (1, 2))
    noised = DPFedAvg(clip=1.0, noise_multiplier=1.0)
    assert blamed(first, FedAdam(), noised) is first
    assert "server step FedAdam" in str(blamed(second, FedAdam(), None))
    assert "lower updates.clip" in str(blamed(second, FedAvg(), noised))
    assert str(blamed(second, FedAvg(), None)) == str(second)
