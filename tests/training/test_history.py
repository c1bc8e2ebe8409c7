"""Metrics as columns, what `run` returns, and how objects show themselves."""

import builtins
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmix import (
    BadInput,
    Exchange,
    Federation,
    FedMix,
    FedmixWarning,
    Run,
    Training,
    data,
    models,
    presets,
    record,
    report,
)
from fedmix.training.evaluation import Metric
from fedmix.training.history import History


def digits(**settings: Any) -> Federation:
    torch.manual_seed(0)  # the same initial weights every time
    return Federation(
        models.digits_cnn(), data.digits(clients=20), FedMix(lam=0.1, expand="logits"),
        Training(clients_per_round=2, epochs=1), **settings,
    )  # fmt: skip


def test_nothing_is_trained_before_it_is_asked_for() -> None:
    federation = digits()
    coming = federation.run(2)
    assert repr(coming) == "rounds 1 to 2, not run yet: iterate over them, or call .finish()"
    assert federation.round == 0
    assert next(coming).round == 1
    assert repr(coming) == "rounds 1 to 2, 1 done"
    history = coming.finish()
    assert (repr(coming), federation.round) == ("rounds 1 to 2, all done", 2)
    assert history["round"].tolist() == [1, 2]
    assert repr(federation.run(2)) == "no rounds: 2 are done"


def test_rounds_that_are_thrown_away_are_told() -> None:
    federation = digits()
    with pytest.warns(FedmixWarning, match=r"rounds 1 to 3 were not run: iterate .*\.finish\(\)"):
        federation.run(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(federation.run(3))
        federation.run(1)  # nothing is left of it
        repr(federation.run(3))  # which says it
        with pytest.raises(BadInput, match=r"rounds=2\.5"):
            federation.run(2.5)  # type: ignore[arg-type]


def test_a_history_has_what_the_rounds_said() -> None:
    """Bytes are summed up to each round; what was not tested is NaN."""
    federation = digits()
    done = list(federation.run(3, evaluate_every=2))
    history = federation.history
    assert list(history) == [
        "round", "accuracy", "loss", "local_loss", "bytes_up", "bytes_down",
    ]  # fmt: skip
    assert history["local_loss"].tolist() == [one.local_loss for one in done]
    assert math.isnan(history["accuracy"][0])
    assert [one.metrics["accuracy"] for one in done[1:] if one.metrics] == history["accuracy"][
        1:
    ].tolist()
    np.testing.assert_array_equal(history["bytes_up"], np.cumsum([d.traffic.up for d in done]))
    assert federation.traffic.down == history["bytes_down"][-1]


def test_a_plot_has_the_rounds_that_were_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    lines: list[dict[str, float]] = [
        {"round": 1, "loss": 3.0}, {"round": 2, "loss": 2.0, "accuracy": 0.5},
        {"round": 3, "loss": 1.0, "accuracy": 0.75},
    ]  # fmt: skip
    history = History.of(lines)
    axes = history.plot(label="it")
    assert axes.lines[0].get_xydata().tolist() == [[2, 0.5], [3, 0.75]]  # type: ignore[union-attr]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy")
    assert history.plot("loss", ax=axes) is axes
    assert axes.lines[1].get_xydata().tolist() == [[1, 3], [2, 2], [3, 1]]  # type: ignore[union-attr]
    pyplot.close("all")
    with pytest.raises(BadInput, match="no metric 'acc' to plot; choose one of: accuracy, loss"):
        history.plot("acc")
    with pytest.raises(BadInput, match="no round is done yet"):
        History().plot()
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r"to plot, run: pip install 'fedmix\[cli\]'"):
        history.plot()


def test_a_record_has_the_history_of_all_rounds_also_when_it_goes_on(tmp_path: Path) -> None:
    first = record(digits(), tmp_path / "run", 1, quiet=True)
    summary = record(digits(), tmp_path / "run", 3, quiet=True)
    assert first["rounds"] == 1
    assert summary.history["round"].tolist() == [1, 2, 3]
    assert summary.history["accuracy"][-1] == summary["last"]
    assert "seconds" in summary.history


def test_a_metric_cannot_change_what_the_next_one_sees() -> None:
    def zeroes(outputs: Tensor, targets: Tensor) -> float:
        outputs.zero_()
        targets.zero_()
        return 0.0

    def largest(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.abs().max() + targets.max()

    both: dict[str, Metric] = {"zeroes": zeroes, "largest": largest}
    changed, alone = digits(metrics=both), digits(metrics={"largest": largest})
    assert changed.evaluate()["largest"] == alone.evaluate()["largest"] > 1


def test_objects_say_what_they_are_in_a_line() -> None:
    federation = digits(exchange=Exchange(m=5, noise=0.1))
    assert repr(federation) == "Federation(digits, 20 clients, FedMix, 0 rounds done)"
    [done] = federation.run(1)
    sent = f"{done.traffic.up / 1e6:.3g} MB up, {done.traffic.down / 1e6:.3g} MB down"
    assert repr(done).startswith(f"Round(1: local_loss {done.local_loss:.4g}, accuracy ")
    assert repr(done).endswith(f", {sent})")
    assert repr(federation).startswith(
        "Federation(digits, 20 clients, FedMix, 1 round done, accuracy "
    )
    rows = len(federation.data.clients.flat)
    assert repr(federation.data) == (
        f"FederatedData('digits': 20 clients, {rows} samples of shape (8, 8, 1), 10 classes, "
        f"{len(federation.data.held_out.x)} to test on)"
    )
    assert repr(federation.data.clients) == f"Ragged(20 clients, {rows} rows)"
    assert federation.exchange is not None
    assert repr(federation.exchange.how) == "Exchange(m=5, noise=0.1)"
    pool = federation.exchange.pool
    assert pool is not None
    assert repr(pool) == f"Pool({len(pool)} means of shape (1, 8, 8))"
    assert (
        repr(federation.exchange) == f"MeanExchange(Exchange(m=5, noise=0.1), 20 clients: {pool!r})"
    )
    assert repr(federation.exchange.releases) == f"Releases({len(pool)} means of 20 clients)"
    table = federation._repr_html_()
    assert "<th" in table
    assert "FedMix(lam=0.1, expand=&#x27;logits&#x27;)<" in table  # without defaults


def test_runs_and_results_say_what_they_are_in_a_line(tmp_path: Path) -> None:
    record(digits(), tmp_path / "run", 1, quiet=True)
    [run] = report.load_runs([tmp_path])
    assert repr(run) == f"RunRecord(run: 1 round, accuracy {100 * run.scores.last:.1f} %)"
    results = report.results_of([run])
    assert repr(results) == results.table().markdown()
    assert results._repr_html_().count("<tr>") == 2
    experiment = presets.experiment("digits", "fedmix")
    assert repr(Run(experiment, Path("runs/it"))) == "Run('runs/it': fedmix, 40 rounds)"


def test_a_notebook_gets_no_markup_from_names() -> None:
    x = np.zeros((4, 2), np.float32)
    rows = data.Ragged.of([[0, 1], [2, 3]])
    given = data.FederatedData(x, np.zeros((4, 1), np.float32), rows, data.HeldOut(x, x[:, :1]),
                               name="<script>")  # fmt: skip
    federation = Federation(
        torch.nn.Linear(2, 1), given, FedMix(lam=0.1), Training(clients_per_round=1)
    )
    assert "<script>" not in federation._repr_html_()
    assert "&lt;script&gt;" in federation._repr_html_()
