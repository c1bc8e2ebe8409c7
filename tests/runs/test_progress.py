"""What a terminal and a pipe show of runs: at any width, of several, resumed, and stopped."""

import re
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedmix.core.errors import Interrupted
from fedmix.experiment.labels import titles
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.experiment.sweep import experiments
from fedmix.runs import progress
from fedmix.runs.execute import run_each
from fedmix.runs.progress import Board, Progress
from fedmix.runs.run import Run

ROUND = {"accuracy": 0.5, "loss": 2.0}


def digits(**settings: Any) -> Experiment:
    return experiment("digits", "fedavg").with_settings(
        {"rounds": 4, "data.local_share": 0.1} | settings
    )


class Screen:
    """A terminal of some width, at a time that is set; or, without a width, a pipe."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, width: int | None) -> None:
        self.file, self.time = StringIO(), 1000.0
        self.console = Console(
            file=self.file,
            force_terminal=width is not None,
            width=width or 200,
            highlight=False,
            get_time=lambda: self.time,
        )
        monkeypatch.setattr(progress, "console", lambda: self.console)
        monkeypatch.setattr("fedmix.runs.progress.time.monotonic", lambda: self.time)

    def lines(self, board: Board) -> list[str]:
        """What the lines that move show now."""
        self.file.truncate(0)
        self.file.seek(0)
        self.console.print(board.lines.get_renderable())
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.file.getvalue())
        return [line.rstrip() for line in shown.splitlines()]

    def said(self) -> list[str]:
        """What was printed to the pipe."""
        return self.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (100, ["2/4", "0:00:04", "accuracy  50.0 %", "loss 2.000", "2.5 clients/s"]),
        (80, ["2/4", "0:00:04", "accuracy  50.0 %", "loss 2.000"]),
        (68, ["2/4", "0:00:04", "accuracy  50.0 %"]),
        (40, ["2/4", "0:00:04"]),
    ],
)
def test_what_matters_least_goes_first(
    width: int, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 clients a round and 2 seconds a round: 2.5 clients a second, and 4 seconds for 2 rounds."""
    screen = Screen(monkeypatch, width)
    board = Board([(digits(), 0)])
    one = Progress("digits fedavg seed 0 a", digits(), board=board)
    for done in (1, 2):
        one.update(ROUND | {"round": done})
        screen.time += 2
    screen.time -= 2
    [line] = screen.lines(board)
    assert line.startswith("digits fedavg seed 0 a ")
    assert len(line) <= width - 2  # ^C fits behind it
    every = ["2/4", "0:00:04", "accuracy  50.0 %", "loss 2.000", "2.5 clients/s"]
    assert [part for part in every if part in line] == shown


def test_of_several_runs_all_are_shown_and_those_that_ended_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three runs of 4 rounds, of which one was done before and one stands at round 3; 2 rounds in 2
    seconds, so that the 3 that are left take 3 more.
    """
    screen = Screen(monkeypatch, 80)
    board = Board([(digits(), 0), (digits(), 3)], ended=1)
    one = Progress("[2/3] seed 1", digits(), 0, board=board)
    two = Progress("[3/3] seed 2", digits(), 3, board=board)
    assert [line.split()[:2] for line in screen.lines(board)] == [
        ["all", "runs"], ["[2/3]", "seed"], ["[3/3]", "seed"],
    ]  # fmt: skip
    assert re.search(r"\[3/3\] seed 2 .* 3/4 ", screen.lines(board)[2])
    for done in (1, 2):
        one.update(ROUND | {"round": done})
        screen.time += 1
    screen.time -= 1
    assert re.search(r"^all runs .* 1/3 0:00:03$", screen.lines(board)[0])
    two.update({"round": 4})
    two.leave()
    assert "[3/3] seed 2  round 4/4\n" in screen.file.getvalue()
    every, left = screen.lines(board)
    assert " 2/3 " in every
    assert left.startswith("[2/3] seed 1 ")
    one.leave(ValueError("it was wrong"))
    assert "[2/3] seed 1  it was wrong\n" in screen.file.getvalue()
    [every] = screen.lines(board)
    assert " 3/3 " in every
    assert board.all is not None
    assert board.task(board.all).finished  # what the failed run has not done is not awaited


def test_a_pipe_hears_of_the_start_seldom_in_between_and_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """90 rounds of 2 seconds each, in two runs: a line after 30 seconds at the soonest, and one
    for the last round, which is also after 30 seconds.
    """
    screen = Screen(monkeypatch, None)
    long = digits(rounds=90)
    board = Board([(long, 0), (long, 40)])
    first = Progress("[1/2] seed 0", long, board=board)
    first.begin()
    for done in range(1, 91):
        screen.time += 2
        first.update({"round": done, "accuracy": 0.25})
    first.leave()
    Progress("[2/2] seed 1", long, 40, board=board).begin()
    start, *between, end, second = screen.said()
    assert start == "[1/2] seed 0  started"
    assert between[0] == (
        "[1/2] seed 0  round 15/90  accuracy  25.0 %  2.5 clients/s  0:02:30 left; 0/2 runs; "
        "0:04:10 left"
    )
    assert [int(line.split()[4].split("/")[0]) for line in between] == [15, 30, 45, 60, 75]
    assert end == "[1/2] seed 0  round 90/90  accuracy  25.0 %  2.5 clients/s"
    assert second == "[2/2] seed 1  goes on after round 40/90"


def test_a_quiet_command_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen(monkeypatch, 80)
    with Progress("digits", digits(), quiet=True) as one:
        for done in (1, 2, 3, 4):
            screen.time += 60
            one.update(ROUND | {"round": done})
    assert (screen.file.getvalue(), *capsys.readouterr()) == ("", "", "")


def test_titles_say_what_varies() -> None:
    def of(algorithms: list[str | None], seeds: int, *settings: str) -> list[str]:
        return titles(experiments("digits", algorithms, None, None, seeds, settings))

    assert of(["naivemix"], 1) == ["digits naivemix seed 0"]
    assert of(["fedavg"], 2) == ["fedavg seed 0", "fedavg seed 1"]
    assert of(["fedavg", "fedmix"], 1, "objective.lam=0.1,0.2") == [
        "fedavg", "fedmix λ=0.1", "fedmix λ=0.2",
    ]  # fmt: skip
    both = [digits(), experiment("cifar10", "fedavg")]
    assert [title.split()[:2] for title in titles(both)] == [
        ["digits", "fedavg"], ["cifar10", "fedavg"],
    ]  # fmt: skip


def test_a_sweep_goes_on_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped in round 2 of its first run; then that run goes on there, and the second one starts;
    then both were done before.
    """
    runs = [Run(digits(seed=seed, rounds=6), tmp_path / str(seed)) for seed in (0, 1)]

    def every() -> list[Any]:
        return list(run_each(runs, None, command="", quiet=False))

    update = Progress.update

    def press(self: Progress, line: dict[str, Any]) -> None:
        if line["round"] == 2 and self.title.startswith("[1/2]"):
            signal.raise_signal(signal.SIGINT)
        update(self, line)

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "update", press)
        with pytest.raises(Interrupted) as stopped:
            every()
    assert str(stopped.value) == (
        "stopped with 0 of 2 runs done; nothing is lost: run the same command again, and it goes "
        "on where it was"
    )
    assert "finishing this round" in capsys.readouterr().err
    begun = runs[0].begun()
    assert begun >= 2
    assert all(not isinstance(outcome, Exception) for _, outcome in every())
    said = capsys.readouterr().err
    assert f"[1/2] fedavg seed 0  goes on after round {begun}/6\n" in said
    assert "[2/2] fedavg seed 1  " in said
    every()
    assert capsys.readouterr().err.splitlines() == [
        "[1/2] fedavg seed 0  done before", "[2/2] fedavg seed 1  done before",
    ]  # fmt: skip
