"""Callbacks, metrics and a choice of clients of one's own."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmix import BadInput, Federation, Round, Supervised, Training, record
from fedmix.models import initialised
from fedmix.server_steps import FedAdam, FedYogi
from fedmix.training.engines import Engine
from fedmix.training.evaluation import Metric
from tests.synthetic import ENGINES, NAMES, arrays, listen

Array = np.ndarray[Any, Any]


def net() -> nn.Module:
    return nn.Linear(4, 3)


def federation(lr: float = 0.1, lr_decay: float = 1.0, **more: Any) -> Federation:
    training = Training(2, batch_size=3, lr=lr, lr_decay=lr_decay, momentum=0.5)
    return Federation(initialised(net, 0), arrays(30, clients=5), Supervised(), training, **more)


def same(one: Federation, other: Federation) -> bool:
    return all(torch.equal(p, other.params[n]) for n, p in one.params.items())


# Callbacks


def test_callbacks_see_every_round_and_its_weights() -> None:
    seen: list[tuple[Round, Tensor]] = []
    order: list[str] = []
    run = federation(
        callbacks=[
            lambda done, of: seen.append((done, of.params["weight"].clone())),
            lambda *_: order.append("first"),
            lambda *_: order.append("second"),
        ]
    )
    plain = federation()
    for ours, theirs in zip(run.run(3), plain.run(3), strict=True):
        assert ours == theirs == seen[-1][0]
        assert torch.equal(seen[-1][1], plain.params["weight"])
    assert len(seen) == 3
    assert order == ["first", "second"] * 3


def stop_after(rounds: int) -> Callable[[Round, Federation], None]:
    def callback(done: Round, run: Federation) -> None:
        if done.round == rounds:
            run.stop()

    return callback


def test_a_callback_ends_the_run() -> None:
    run, plain = federation(callbacks=[stop_after(2)]), federation()
    assert [done.round for done in run.run(9)] == [1, 2]
    list(plain.run(2))
    assert same(run, plain)
    assert list(run.run(9)) == []


def test_the_last_round_has_test_metrics_whoever_made_it_the_last() -> None:
    run = federation(callbacks=[stop_after(3)])
    rounds = list(run.run(9, evaluate_every=2))
    assert [done.metrics is not None for done in rounds] == [False, True, True]
    assert rounds[-1].metrics == run.evaluate()


def halve_after(rounds: int) -> Callable[[Round, Federation], None]:
    def callback(done: Round, run: Federation) -> None:
        if done.round == rounds:
            run.lr_scale *= 0.5

    return callback


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_callback_changes_the_rate(engine: Engine) -> None:
    """Halved after round 2, as a run that goes on with half the rate; and on top of the decay."""
    run = federation(callbacks=[halve_after(2)], engine=engine)
    work = listen(run)
    list(run.run(4))
    assert [done.lr for done in work] == [0.1, 0.1, 0.05, 0.05]
    first, second = federation(engine=engine), federation(lr=0.05, engine=engine)
    list(first.run(2))
    second.restore(first.state())
    list(second.run(4))
    assert same(run, second)
    decayed = federation(lr_decay=0.9, callbacks=[halve_after(1)], engine=engine)
    work = listen(decayed)
    list(decayed.run(3))
    assert [done.lr for done in work] == pytest.approx([0.1, 0.1 * 0.9 / 2, 0.1 * 0.81 / 2])


def test_stop_and_rate_survive_a_stop_of_the_run() -> None:
    def start() -> Federation:
        return federation(callbacks=[halve_after(1), stop_after(4)])

    whole, first, second = start(), start(), start()
    list(whole.run(9))
    list(first.run(2))
    second.restore(first.state())
    assert second.lr_scale == 0.5
    assert [done.round for done in second.run(9)] == [3, 4]
    assert same(whole, second)
    third = start()
    third.restore(second.state())
    assert third.stopped
    assert list(third.run(9)) == []


def test_a_recorded_run_that_a_callback_stopped_is_done(tmp_path: Path) -> None:
    run = federation(callbacks=[stop_after(3)])
    summary = record(run, tmp_path, rounds=9, evaluate_every=2, quiet=True)
    assert summary["rounds"] == 3
    again = federation(callbacks=[stop_after(3)])
    assert record(again, tmp_path, rounds=9, evaluate_every=2, quiet=True)["rounds"] == 3
    assert again.round == 3
    assert same(run, again)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_callback_that_fails_ends_the_run_after_its_round() -> None:
    def fails(done: Round, _: Federation) -> None:
        if done.round == 2:
            raise ZeroDivisionError

    run, plain = federation(callbacks=[fails]), federation()
    with pytest.raises(ZeroDivisionError):
        list(run.run(4))
    assert run.round == 2
    list(run.run(4))
    list(plain.run(4))
    assert same(run, plain)


# Who takes part


def test_a_choice_of_ones_own() -> None:
    asked: list[tuple[int, list[int], int]] = []

    def choose(round_: int, sizes: Array, count: int, rng: np.random.Generator) -> list[int]:
        asked.append((round_, sizes.tolist(), count))
        assert isinstance(rng, np.random.Generator)
        return [round_, 4, 3] if round_ else [2]

    run = federation(choose=choose)
    work = listen(run)
    list(run.run(3))
    assert [done.clients.tolist() for done in work] == [[2], [1, 4, 3], [2, 4, 3]]
    assert asked == [(r, [6] * 5, 2) for r in range(3)]


def test_a_choice_draws_the_same_again() -> None:
    def choose(_: int, sizes: Array, count: int, rng: np.random.Generator) -> Array:
        return rng.choice(len(sizes), count, replace=False, p=sizes / sizes.sum())

    one, first, second = (federation(choose=choose) for _ in range(3))
    list(one.run(4))
    list(first.run(2))
    second.restore(first.state())
    list(second.run(4))
    assert same(one, second)


@pytest.mark.parametrize(
    "wrong",
    [
        *([1, 1], [0, 5], [-1, 0], [0.0, 1.0], [], [[0], [1]], [[0], [1, 2]]),
        *(["a"], {0, 1}, [0] * 999, None, 3, [True, False]),
    ],
    ids=lambda wrong: str(wrong)[:20],
)
def test_a_choice_that_makes_no_sense_is_refused(wrong: Any) -> None:
    run = federation(choose=lambda *_: wrong)
    with pytest.raises(
        BadInput, match=r"round 1: `choose` gave .*; give different clients, at least one, by their"
    ) as caught:
        list(run.run(1))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert run.round == 0


# Metrics


def recall(outputs: Tensor, targets: Tensor) -> dict[str, float | Tensor]:
    named, true = outputs.argmax(1), targets.argmax(1)
    return {f"class {c}": (named[true == c] == c).double().mean() for c in range(3)}


def calibration(outputs: Tensor, targets: Tensor) -> float:
    """How far confidence is from accuracy, in two bins of confidence."""
    sure, named = outputs.softmax(1).max(1)
    right = (named == targets.argmax(1)).float()
    bins = [sure < 0.5, sure >= 0.5]
    apart = [len(right[b]) * abs(float(sure[b].mean() - right[b].mean())) for b in bins if b.any()]
    return sum(apart) / len(right)


METRICS: dict[str, Metric] = {"recall": recall, "calibration": calibration}


def by_hand(run: Federation) -> dict[str, float]:
    """Both in plain Python, sample by sample."""
    w, b = run.params["weight"].double().numpy(), run.params["bias"].double().numpy()
    found: list[tuple[int, int, float]] = []
    assert run.data.test is not None
    for x, y in zip(run.data.test.x, run.data.test.y, strict=True):
        e = [
            math.exp(float(np.dot(row, x.astype(np.float64)) + c))
            for row, c in zip(w, b, strict=True)
        ]
        found.append((int(y), e.index(max(e)), max(e) / sum(e)))
    metrics = {}
    for c in range(3):
        own = [named == c for true, named, _ in found if true == c]
        metrics[f"recall.class {c}"] = sum(own) / len(own)
    total = 0.0
    for low, high in ((0.0, 0.5), (0.5, 1.01)):
        inside = [(named == true, sure) for true, named, sure in found if low <= sure < high]
        if inside:
            total += abs(sum(sure for _, sure in inside) - sum(right for right, _ in inside))
    return metrics | {"calibration": total / len(found)}


def test_metrics_of_ones_own() -> None:
    run, plain = federation(metrics=METRICS), federation()
    for done, theirs in zip(
        run.run(3, evaluate_every=2), plain.run(3, evaluate_every=2), strict=True
    ):
        assert (done.metrics is None) == (theirs.metrics is None)
        if done.metrics is not None and theirs.metrics is not None:
            assert done.metrics == pytest.approx(theirs.metrics | by_hand(run), abs=1e-6)
    assert same(run, plain)


def test_metrics_of_ones_own_are_recorded(tmp_path: Path) -> None:
    run = federation(metrics=METRICS)
    record(run, tmp_path, rounds=2, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    for name, value in by_hand(run).items():
        assert lines[1][name] == pytest.approx(value, abs=1e-6)


def test_all_test_samples_come_at_once_in_their_order() -> None:
    """More than fit into a chunk of evaluation."""
    many = arrays(2500, clients=5)
    seen: list[tuple[int, ...]] = []

    def first(outputs: Tensor, targets: Tensor) -> float:
        seen.append((*outputs.shape, *targets.shape))
        return float(targets[2100].argmax())

    run = Federation(initialised(net, 0), many, Supervised(), Training(1), metrics={"first": first})
    assert many.test is not None
    assert run.evaluate()["first"] == many.test.y[2100]
    assert seen == [(2500, 3, 2500, 3)]


# What is refused


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"callbacks": print}, r"`callbacks` is .*; give a list of functions"),
        ({"callbacks": [3]}, r"`callbacks` is .*; give a list of functions"),
        ({"choose": [0, 1]}, r"`choose` is of type list; give a function of the round"),
        ({"metrics": [recall]}, r"`metrics` is of type list; give functions by name"),
        ({"metrics": {"accuracy": recall}}, r"metrics\['accuracy'\] is .* under another name than"),
        ({"metrics": {"bytes_up": recall}}, r"metrics\['bytes_up'\] is .* under another name"),
        ({"metrics": {"": recall}}, r"metrics\[''\] is "),
        ({"metrics": {"mine": 3}}, r"metrics\['mine'\] is of type int; give a function of outputs"),
        ({"server": "fedadam"}, r"`server` is of type str; give a server step, such as FedAvg"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        federation(**wrong)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_numbers_by_name_may_be_called_zero() -> None:
    run = federation(metrics={"recall": lambda *_: {0: 0.25, 1: 0.5}})
    found = run.evaluate()
    assert (found["recall.0"], found["recall.1"]) == (0.25, 0.5)
    assert "recall" not in found


def test_two_metrics_of_one_name_are_refused() -> None:
    run = federation(metrics={"a": lambda *_: {"b": 1.0}, "a.b": lambda *_: 2.0})
    with pytest.raises(BadInput, match=r"metrics\['a.b'\] gave 'a.b', and so did another; rename"):
        run.evaluate()


@pytest.mark.parametrize("rate", [-1.0, 0.0, float("nan"), float("inf"), "half", None])
def test_a_rate_that_is_none_is_refused_before_the_next_round(rate: Any) -> None:
    def sets(_: Round, run: Federation) -> None:
        run.lr_scale = rate

    run = federation(callbacks=[sets])
    for _ in range(2):  # nor does it go on when asked again
        with pytest.raises(
            BadInput, match=r"federation\.lr_scale=.* (must be positive|is no number)"
        ):
            list(run.run(3))
        assert run.round == 1


@pytest.mark.parametrize("value", ["high", torch.zeros(3), None, {"a": [1.0]}], ids=str)
def test_a_metric_that_is_no_number_is_refused_in_a_sentence(value: Any) -> None:
    run = federation(metrics={"mine": lambda *_: value})
    with pytest.raises(BadInput, match=r"metrics\['mine'\] gave .*; give a number, or numbers by"):
        run.evaluate()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"server": FedAdam(lr=0.5)}, "server.lr is 0.1 there and 0.5 here"),
        ({"server": FedYogi(lr=0.1)}, "server.name is fedadam there and fedyogi here"),
        ({"server": None}, "server.* is .* there and not set here"),
        ({"choose": lambda *_: [1]}, r"recorded.choose is \w+ there and \w+ here"),
        ({"choose": None}, r"recorded.choose is \w+ there and not set here"),
    ],
    ids=["rate", "step", "no step", "choice", "no choice"],
)
def test_another_server_step_or_choice_does_not_go_on_in_a_folder(
    made: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"server": FedAdam(lr=0.1), "choose": lambda *_: [0]}
    record(federation(**given), tmp_path, rounds=1, quiet=True)
    with pytest.raises(BadInput, match=said):
        record(federation(**(given | made)), tmp_path, rounds=2, quiet=True)
    assert record(federation(**given), tmp_path, rounds=2, quiet=True)["rounds"] == 2


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_device_of_torch_is_taken_as_its_name(engine: Engine) -> None:
    device: Any = torch.device("cpu")
    assert next(federation(engine=replace(engine, device=device)).run(1)).round == 1
