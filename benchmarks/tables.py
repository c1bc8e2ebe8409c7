"""Runs tables of the paper within a time limit, several runs at once, the first ones first.

    python benchmarks/tables.py mean-size lambda dirichlet --scale small --device cuda --jobs 14

Unlike `fedmix reproduce --jobs`, its processes stay: each one imports, starts the GPU and compiles
once, which for runs of seconds is most of the time. At the limit runs write a checkpoint; the same
command goes on. A table may name rows and columns, TABLE:ROWS:COLUMNS. `fedmix reproduce TABLE
--no-run` shows what is there.
"""

import argparse
import gc
import math
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch

from fedmix.core.errors import Collapsed, Diverged, FedmixError, Interrupted, first_line
from fedmix.experiment.spec import Experiment
from fedmix.experiment.sweep import parse_setting
from fedmix.paper import named
from fedmix.paper.outcome import outcome
from fedmix.paper.study import Scale, Study
from fedmix.runs.run import Run, folder_of

GRACE = 30.0  # seconds beyond the limit for a round, or a compilation, that is under way


def experiments(
    tables: Sequence[str], seeds: Sequence[int], scale: Scale, changes: dict[str, Any]
) -> list[Experiment]:
    """Return every experiment once: of all tables with the first seed, then with the next."""
    found: dict[str, Experiment] = {}
    for seed in seeds:
        for text in tables:
            name, rows, columns = (*text.split(":"), "", "")[:3]
            table = named(name).select(rows or None, columns or None)
            taken = {
                path: value
                for path, value in changes.items()
                if any(e.takes(path) for e in table.experiments())
            }
            found |= {e.id: e for e in Study(table, (seed,), scale, taken).experiments()}
    return list(found.values())


def tasks(missing: Sequence[Experiment]) -> list[list[Experiment]]:
    """Return what a process takes at a time: a run, or all of Shakespeare.

    Blocks of an LSTM kernel wait for one another, so two of them may not share a GPU.
    """
    text = [e for e in missing if e.data.name == "shakespeare"]
    return [[e] for e in missing if e not in text] + ([text] if text else [])


def work(
    todo: Sequence[Sequence[Experiment]],
    taken: "Synchronized[int]",
    out: Path,
    root: Path | None,
    until: float,
) -> None:
    """Take and execute tasks until none is left, or the time is up.

    An unknown error ends this process alone: the GPU may be lost to it.
    """
    torch.set_num_threads(1)
    while time.time() < until:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(todo):
            return
        for experiment in todo[number]:
            print(f"{number + 1}/{len(todo)} {execute(experiment, out, root, until)}", flush=True)
            gc.collect()  # what is left of it on the GPU


def execute(experiment: Experiment, out: Path, root: Path | None, until: float) -> str:
    """Execute a run and say what became of it."""
    begun, run = time.time(), Run(experiment, folder_of(experiment, out))
    try:
        done = run.execute(root=root, stopped=lambda: time.time() > until, checkpoint_seconds=60.0)
    except Interrupted:
        said = "stopped"
    except (Diverged, Collapsed) as error:
        said = f"{type(error).__name__.lower()}: {first_line(error)}"
    except FedmixError as error:
        said = f"refused: {first_line(error)}"
    else:
        said = f"{100 * done['mean_last_ten']:.1f} %"
    return f"{run.folder.name} {said}, {time.time() - begun:.0f} s"


def main() -> None:
    """Run what is missing."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("tables", nargs="+", metavar="TABLE[:ROWS[:COLUMNS]]")
    ask.add_argument("--scale", choices=["paper", "small"], default="paper")
    ask.add_argument("--seed", type=int, default=0, help="the first seed")
    ask.add_argument("--seeds", type=int, default=1)
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--jobs", type=int, default=1)
    ask.add_argument("--minutes", type=float, default=math.inf, help="when to stop")
    ask.add_argument("--rounds", type=int)
    ask.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    ask.add_argument("--data", type=Path, help="folder with the hub's files")
    ask.add_argument("--out", type=Path, default=Path("runs"))
    told = ask.parse_args()
    until = time.time() + 60 * told.minutes
    changes = {path: value for text in told.set for path, value in parse_setting(text)}
    changes |= {"engine.device": told.device}
    changes |= {} if told.rounds is None else {"rounds": told.rounds}
    seeds = range(told.seed, told.seed + told.seeds)
    every = experiments(told.tables, seeds, told.scale, changes)
    todo = tasks([e for e in every if not outcome(e, told.out).known])
    print(f"{len(every)} runs, {sum(map(len, todo))} of them missing", flush=True)
    together = multiprocessing.get_context("fork")  # nothing is imported again
    taken = together.Value("i", 0)
    workers = [
        together.Process(target=work, args=(todo, taken, told.out, told.data, until), daemon=True)
        for _ in range(min(told.jobs, len(todo)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(None if math.isinf(until) else max(0.0, until + GRACE - time.time()))
    there = sum(outcome(e, told.out).known for e in every)
    print(f"{there} of {len(every)} runs are there", flush=True)


if __name__ == "__main__":
    main()
