"""FedAvg, NaiveMix and FedMix on scikit-learn's digits, 20 clients with two classes each.

    python examples/demo.py [--rounds 40] [--seeds 3] [--out demo-out]

It writes a table, a picture and a report. The nine runs are independent and use all cores. A
stopped demo continues where it was when it is started again.
"""

import argparse
import json
import multiprocessing
import os
import queue
import sys
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# Of FedMix's forms, the one that trains on all data sets that were tried.
ALGORITHMS = {"fedavg": "FedAvg", "naivemix": "NaiveMix", "fedmix-logits": "FedMix (logits)"}
Job = tuple[str, int]


def train(job: Job, rounds: int, out: Path) -> list[float]:
    """Do one run in its own folder; return the accuracy after every round, in percent."""
    from fedmix import Run
    from fedmix.experiment.presets import experiment

    algorithm, seed = job
    spec = experiment("digits", algorithm, seed=seed).with_settings({"rounds": rounds})
    folder = out / "runs" / spec.id

    def listen(line: dict[str, Any]) -> None:
        assert REPORTS is not None
        REPORTS.put((algorithm, line["round"], 100 * line["accuracy"]))

    Run(spec, folder).execute(listen, command="make demo")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [100 * json.loads(line)["accuracy"] for line in lines]


REPORTS: "Queue[tuple[str, int, float]] | None" = None


def start_worker(reports: "Queue[tuple[str, int, float]]", threads: int) -> None:
    """Prepare a worker process: Ctrl-C is left to the parent."""
    global REPORTS
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(threads)
    REPORTS = reports


def run_all(jobs: list[Job], rounds: int, out: Path, console: Console) -> dict[Job, list[float]]:
    """Do all runs, as many at once as there are cores, with a progress bar for each algorithm."""
    context = multiprocessing.get_context("spawn")
    reports: Any = context.Queue()
    workers = min(len(jobs), os.cpu_count() or 1)
    columns = (
        TextColumn("{task.description:15}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with (
        context.Pool(workers, start_worker, (reports, 1)) as pool,
        Progress(*columns, console=console) as progress,
    ):
        seeds = len(jobs) // len(ALGORITHMS)
        bars = {
            a: progress.add_task(name, total=rounds * seeds, now="")
            for a, name in ALGORITHMS.items()
        }
        results = {job: pool.apply_async(train, (job, rounds, out)) for job in jobs}
        while not all(result.ready() for result in results.values()):
            try:
                algorithm, _, accuracy = reports.get(timeout=0.2)
            except queue.Empty:
                continue
            progress.update(bars[algorithm], advance=1, now=f"{accuracy:5.1f} %")
        done = {job: result.get() for job, result in results.items()}
        for bar in bars.values():
            progress.update(bar, completed=rounds * seeds)
        return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    args = parser.parse_args()
    if args.rounds < 1 or args.seeds < 1:
        parser.error("--rounds and --seeds must be at least 1")
    console = Console()
    jobs = [(algorithm, seed) for seed in range(args.seeds) for algorithm in ALGORITHMS]
    started = time.perf_counter()
    try:
        results = run_all(jobs, args.rounds, args.out, console)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on where it was")
        return 130
    curves = {a: np.array([results[a, seed] for seed in range(args.seeds)]) for a in ALGORITHMS}
    shown = [r for r in (10, 20, 40) if r <= args.rounds] or [args.rounds]
    table = Table(title=f"Digits: test accuracy, %, seeds: {args.seeds}")
    table.add_column("algorithm")
    for r in shown:
        table.add_column(f"round {r}", justify="right")
    for algorithm, name in ALGORITHMS.items():
        cells = (curves[algorithm][:, r - 1] for r in shown)
        table.add_row(
            name, *(f"{c.mean():.1f} ± {c.std(ddof=min(1, len(c) - 1)):.1f}" for c in cells)
        )
    console.print(table)
    from fedmix.report import draw, load_runs, write_html

    runs = load_runs([args.out / "runs"])
    draw(runs, args.out / "digits.png")
    write_html(runs, args.out / "report.html")
    console.print(
        f"curves: {args.out / 'digits.png'}   report: {args.out / 'report.html'}   "
        f"({time.perf_counter() - started:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
