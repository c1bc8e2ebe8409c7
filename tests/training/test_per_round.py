"""How many clients train in a round: a number, a share of them, or all."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmix import BadInput, Experiment, Federation, Supervised, Training, models
from fedmix.cli.app import app
from fedmix.experiment.presets import experiment
from fedmix.runs.record import Recorded, settings_of
from tests.synthetic import arrays, listen


@pytest.mark.parametrize(
    ("given", "of_ten"),
    [(3, 3), (np.int64(3), 3), (0.3, 3), (0.26, 3), (0.01, 1), (np.float64(0.5), 5),
     (0.99, 10), ("all", 10)],
)  # fmt: skip
def test_as_many_clients_train(given: Any, of_ten: int) -> None:
    federation = Federation(
        models.mlp(4, 3), arrays(20, clients=10), Supervised(), Training(given, batch_size=4)
    )
    work = listen(federation)
    list(federation.run(2))
    assert [len(set(w.clients.tolist())) for w in work] == [of_ten, of_ten]
    # ten clients of two samples: one step each
    assert Training(given, batch_size=4).steps_of_all(np.full(10, 2), 3) == 3 * of_ten
    spec = Recorded(2, 1, None, federation.training, settings_of(federation))
    assert spec.per_round == of_ten


@pytest.mark.parametrize("wrong", [5.0, 0.0, -0.5, math.nan, 0, True, "half", "0.5", None, [3]])
def test_what_is_no_number_of_clients_is_refused(wrong: Any) -> None:
    said = 'is no number of clients; give a whole number from 1 on, a share below 1, or "all"'
    with pytest.raises(BadInput, match=re.escape(f"training.clients_per_round={wrong!r} {said}")):
        Training(wrong)


def test_a_share_of_1_is_refused() -> None:
    with pytest.raises(BadInput, match=r'=1\.0 could be one client or all; give 1 or "all"'):
        Training(1.0)


def test_more_clients_than_there_are_is_refused_still() -> None:
    with pytest.raises(BadInput, match="clients_per_round=3 is more than the 2 clients of arrays"):
        Federation(models.mlp(4, 3), arrays(), Supervised(), Training(3))


@pytest.mark.parametrize("given", [0.25, "all"])
def test_an_experiment_keeps_it_and_has_an_id_of_its_own(given: Any, tmp_path: Path) -> None:
    usual = experiment("digits", "fedavg")
    changed = usual.with_settings({"training.clients_per_round": given})
    (tmp_path / "it.toml").write_text(changed.toml())
    again = Experiment.load(tmp_path / "it.toml")
    assert (again, again.id) == (changed, changed.id)
    assert again.training.clients_per_round == given
    assert again.id != usual.id
    assert changed.per_round == {0.25: usual.data.clients // 4, "all": usual.data.clients}[given]


def test_whole_numbers_have_the_ids_that_they_had() -> None:
    """Names of runs in docs/results hold these hashes."""
    usual = experiment("digits", "fedavg")
    assert type(usual.training.clients_per_round) is int
    assert usual.differing()["training.clients_per_round"] == usual.training.clients_per_round
    same = usual.with_settings({"training.clients_per_round": usual.training.clients_per_round})
    assert same.id == usual.id


def test_the_command_line_takes_shares_and_all(tmp_path: Path) -> None:
    for given, said in (("all", '"all"'), ("0.1", "0.1")):
        line = ["run", "digits", "--algorithm", "fedavg", "--rounds", "1", "-q", "--out",
                str(tmp_path / given), "--set", f"training.clients_per_round={given}",
                "--set", "data.local_share=0.1"]  # fmt: skip
        done = CliRunner().invoke(app, line, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        [written] = (tmp_path / given).glob("*/experiment.toml")
        assert f"clients_per_round = {said}" in written.read_text()
    wrong = [*line[:-4], "--set", "training.clients_per_round=1.0"]
    refused = CliRunner().invoke(app, wrong)
    assert refused.exit_code != 0
