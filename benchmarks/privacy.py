"""Accuracy against ε: FedMix with clipped and noised means, by M_k, by the server's m, by noise.

    OUT=benchmarks/results/DATE-privacy
    python benchmarks/privacy.py digits --json $OUT/digits.json
    python benchmarks/privacy.py cifar10 --device cuda --data DIR --seeds 1 --json $OUT/cifar10.json
    python benchmarks/privacy.py show $OUT/digits.json --plot privacy.svg
    python benchmarks/privacy.py whole --seeds 5 --json $OUT/whole.json

Results in the JSON file are not computed again, and runs are kept in --out: it can be stopped at
any time, or after --minutes, and continued later. The most informative points come first. With
`--groups 5` and so on, several processes can share the work, each with its own file. `show` prints
the table of one or several files. `whole` measures what one ε for all that leaves clients costs.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedmix import DPFedAvg, Federation, NaiveMix, Supervised, Training
from fedmix.core.errors import Collapsed, Diverged
from fedmix.core.files import write_whole
from fedmix.data import digits
from fedmix.exchange import Exchange
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.models import initialised
from fedmix.privacy import least_multiplier, sensitivity, whole_of
from fedmix.privacy.accounting import DELTA, calibrated, guarantee, nonnegative
from fedmix.runs.run import Run

EPSILONS = (16.0, 8.0, 4.0, 2.0, 1.0)
SIGMAS = (0.05, 0.075, 0.15, 0.3)  # the paper's
GROUPS: tuple[int | Literal["all"], ...] = (5, 20, "all")
AVERAGES = (1, 4, 10)
RESULTS = ("epsilon", "accuracy", "last", "diverged", "collapsed")


@dataclass(frozen=True)
class Task:
    """A preset with its settings.

    `clip` bounds a sample's norm (about the median of (x, y)); the last `tests` tests are averaged.
    """

    preset: str
    clip: float
    rounds: int
    tests: int


TASKS = {task.preset: task for task in (Task("digits", 4.0, 10, 5), Task("cifar10", 30.0, 60, 5))}


def points(
    task: Task, groups: Sequence[str], epsilons: Sequence[float], seed: int, root: Path | None
) -> Iterator[tuple[dict[str, Any], Experiment]]:
    """Yield every point of the grid with one seed: its description and its experiment.

    Points without an M_k belong to M_k = all.
    """
    fixed: dict[str, Any] = {"rounds": task.rounds}
    data = experiment(task.preset, "fedavg", seed=seed).build_data(root)
    for algorithm in ("fedavg", "fedmix", "naivemix"):
        mix = experiment(task.preset, algorithm, seed=seed).with_settings(fixed)
        if "all" in groups:
            control = (
                ("fedavg", {})
                if algorithm == "fedavg"
                else ("random means", {"exchange.source": "noise"})
            )
            yield {"algorithm": algorithm, "kind": control[0]}, mix.with_settings(control[1])
        for m in GROUPS if algorithm != "fedavg" else ():
            if str(m) not in groups:
                continue
            for average in AVERAGES if algorithm == "fedmix" else AVERAGES[:1]:
                at = {"algorithm": algorithm, "m": m, "average": average}
                pool = mix.with_settings({"exchange.m": m, "exchange.average": average})
                yield at | {"kind": "as in the paper", "noise": 0.0}, pool
                how = Exchange(m=m, clip=task.clip)
                group = how.smallest_group(data.clients.sizes)
                targets = [
                    e
                    for e in (EPSILONS if algorithm == "fedmix" else EPSILONS[::2])
                    if e in epsilons
                ]
                noises = [
                    (calibrated(how, e, group, nonnegative=nonnegative(data)).noise, "calibrated")
                    for e in targets
                ]
                if algorithm == "fedmix" and average == 1:
                    noises += [(sigma, "the paper's σ") for sigma in SIGMAS]
                for noise, kind in noises:
                    yield (
                        at | {"kind": kind, "noise": noise},
                        pool.with_settings({"exchange.clip": task.clip, "exchange.noise": noise}),
                    )


def result(spec: Experiment, tests: int, out: Path, root: Path | None) -> dict[str, Any]:
    """ε and the accuracy of the last `tests` tests and of the last, or the round of a failure."""
    run = Run(spec, out / spec.id)
    try:
        epsilon = run.execute(root=root)["epsilon"]
    except (Diverged, Collapsed) as error:
        epsilon = None
        if how := spec.build_exchange():
            data = spec.build_data(root)
            promised = guarantee(
                how, how.smallest_group(data.clients.sizes), nonnegative=nonnegative(data)
            )
            epsilon = promised.epsilon if promised else None
        return {
            "epsilon": epsilon,
            "accuracy": None,
            "last": None,
            type(error).__name__.lower(): error.round,
        }
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    tested = [line["accuracy"] for line in lines if "accuracy" in line]
    return {"epsilon": epsilon, "accuracy": float(np.mean(tested[-tests:])), "last": tested[-1]}


def measure(
    task: Task,
    grid: Iterable[tuple[dict[str, Any], Experiment]],
    to: Path,
    minutes: float,
    find: Callable[[Experiment], Any],
) -> None:
    """Find the results that are missing with `find`, and write all known ones after each.

    No run begins after `minutes`.
    """
    records = known(task, to)
    done = [{k: r[k] for k in r if k not in RESULTS} for r in records]
    to.parent.mkdir(parents=True, exist_ok=True)
    todo = [
        (at, spec) for at, spec in sorted(grid, key=lambda point: _last(point[0])) if at not in done
    ]
    began = time.monotonic()
    for left, (at, spec) in zip(range(len(todo), 0, -1), todo, strict=True):
        if time.monotonic() - began > 60 * minutes:
            print(f"{left} points are left; run the same again")
            return
        records.append(at | find(spec))
        print(json.dumps(records[-1], ensure_ascii=False), flush=True)
        header = json.dumps({"preset": task.preset, "delta": DELTA, **vars(task)})[:-1]
        each = ",\n  ".join(json.dumps(record, ensure_ascii=False) for record in records)
        write_whole(to, f'{header},\n "records": [\n  {each}\n]}}\n'.encode())


def known(task: Task, path: Path) -> list[dict[str, Any]]:
    """The records of a file of the same task."""
    if not path.is_file():
        return []
    said = json.loads(path.read_text())
    if vars(task) != {key: said[key] for key in vars(task)}:
        raise SystemExit(f"{path} holds other settings; name another file")
    return list(said["records"])


def _last(at: dict[str, Any]) -> tuple[bool, int, str]:
    """Sort key that puts other m, the paper's σ and NaiveMix last; first seeds come first."""
    more = (
        at["algorithm"] == "naivemix" or at["kind"] == "the paper's σ" or at.get("average", 1) > 1
    )
    return more, at["seed"], at["algorithm"]


Key = tuple[str, str, str, int, float]


def grouped(records: list[dict[str, Any]]) -> dict[Key, list[dict[str, Any]]]:
    """Group records that differ in the seed only; calibrated noise by the ε it was made for.

    Seeds differ far more than settings do, so `gain` compares a record with random means of the
    same seed.
    """
    controls = {
        (r["algorithm"], r["seed"]): r["accuracy"]
        for r in records
        if r["kind"] == "random means" and r["accuracy"]
    }
    by: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for r in records:
        level = round(r["epsilon"], 2) if r["kind"] == "calibrated" else r.get("noise", 0.0)
        control = controls.get(
            ("fedmix" if r["algorithm"] == "fedavg" else r["algorithm"], r["seed"]), np.nan
        )
        key = r["algorithm"], r["kind"], str(r.get("m", "")), r.get("average", 0), level
        accuracy = np.nan if r["accuracy"] is None else r["accuracy"]
        by[key].append(r | {"accuracy": accuracy, "gain": 100 * (accuracy - control)})
    return by


def percent(records: list[dict[str, Any]]) -> str:
    """Mean over seeds, and the difference to random means where they are known."""
    for word in ("diverged", "collapsed"):
        if lost := [r[word] for r in records if word in r]:
            return f"{word} in round {min(lost)}"
    mean, gain = (
        np.mean([100 * r["accuracy"] for r in records]),
        np.mean([r["gain"] for r in records]),
    )
    return f"{mean:.1f}" if np.isnan(gain) else f"{mean:.1f} ({gain:+.1f})"


def table(said: dict[str, Any]) -> str:
    """The results as Markdown."""
    by = grouped(said["records"])
    lines = []
    for algorithm in ("fedmix", "naivemix"):
        if not any(key[:2] == (algorithm, "calibrated") for key in by):
            continue
        lines += [
            f"| {algorithm} | no noise | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |",
            "|---" * 7 + "|",
        ]
        for m in GROUPS:
            for average in AVERAGES:
                cells = [by.get((algorithm, "as in the paper", str(m), average, 0.0), [])]
                cells += [
                    by.get((algorithm, "calibrated", str(m), average, e), []) for e in EPSILONS
                ]
                if any(cells):
                    shown = " | ".join(percent(cell) if cell else "" for cell in cells)
                    lines.append(f"| M_k = {m}, m = {average} | {shown} |")
        lines.append("")
    lines += [
        "| fedmix, m = 1 | " + " | ".join(f"σ = {s}" for s in SIGMAS) + " |",
        "|---" * 5 + "|",
    ]
    for m in GROUPS:
        cells = [by.get(("fedmix", "the paper's σ", str(m), 1, s), []) for s in SIGMAS]
        if any(cells):
            shown = " | ".join(
                f"{percent(c)}, ε = {np.mean([r['epsilon'] for r in c]):.3g}" if c else ""
                for c in cells
            )
            lines.append(f"| M_k = {m} | {shown} |")
    controls = []
    for algorithm, kind in (
        ("fedavg", "fedavg"),
        ("fedmix", "random means"),
        ("naivemix", "random means"),
    ):
        if cell := by.get((algorithm, kind, "", 0, 0.0)):
            title = algorithm if kind == algorithm else f"{algorithm} with {kind}"
            each = ", ".join(f"{100 * r['accuracy']:.1f}" for r in cell)
            seeds = f", by seed {each}" if len(cell) > 1 else ""
            controls.append(f"- {title}: {percent(cell)}{seeds}")
    return "\n".join([*lines, "", *controls])


def draw(said: dict[str, Any], path: Path) -> None:
    """Draw accuracy against ε, a panel for each M_k, relative to random means of the same seeds."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "fedmix"
    by = grouped(said["records"])
    figure, panels = plt.subplots(
        1, len(GROUPS), figsize=(10, 3.4), sharex=True, sharey=True, layout="constrained"
    )

    def mean(key: Key) -> float:
        return float(np.mean([r["gain"] for r in by[key]]))

    for panel, m in zip(panels, GROUPS, strict=True):
        drawn = [
            ("fedmix", average, marker, f"FedMix, m = {average}")
            for average, marker in zip(AVERAGES, "os^", strict=True)
        ]
        for height, (algorithm, average, marker, label) in enumerate(
            [*drawn, ("naivemix", 1, "v", "NaiveMix, m = 1")]
        ):
            known = [e for e in EPSILONS if (algorithm, "calibrated", str(m), average, e) in by]
            # if there is one in any panel, for a common legend
            if any(key[:2] == (algorithm, "calibrated") and key[3] == average for key in by):
                gains = [mean((algorithm, "calibrated", str(m), average, e)) for e in known]
                [line] = panel.plot(known, gains, marker=marker, label=label)
                lost = [e for e, gain in zip(known, gains, strict=True) if np.isnan(gain)]
                at = [0.04 + 0.06 * height] * len(lost)
                panel.plot(
                    lost, at, "x", color=line.get_color(), transform=panel.get_xaxis_transform()
                )
        for key, label, style in (
            (("fedmix", "as in the paper", str(m), 1, 0.0), "FedMix, no noise", "-"),
            (("fedmix", "random means", "", 0, 0.0), "random means", ":"),
            (("fedavg", "fedavg", "", 0, 0.0), "FedAvg", "--"),
        ):
            if key in by:
                panel.axhline(mean(key), color="black", linewidth=1, linestyle=style, label=label)
        panel.set_xscale("log", base=2)
        panel.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        panel.set(title=f"$M_k$ = {m}", xlabel=f"ε (δ = {said['delta']:g}, one sample replaced)")
    panels[0].set_ylabel("test accuracy, points more\nthan with random means")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=7,
        frameon=False,
        fontsize=8,
    )
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


PROMISED = (None, 8.0, 4.0, 2.0)  # ε of all that leaves clients; None for no privacy
CLIENTS, ROUNDS, BOUND, SAMPLE_BOUND, SPENT = 200, 10, 0.5, 4.0, 0.2  # SPENT of μ² is for means


def whole(algorithm: str, epsilon: float | None, seed: int) -> dict[str, Any]:
    """Train a linear model on digits of many clients, who all take part in every round."""
    from torch import nn  # after fedmix, which lets torch's threads sleep while they wait

    means, rule, mu = Exchange(average=20), None, 0.0
    if epsilon is not None:
        if algorithm == "naivemix":
            mu = 2 / least_multiplier(epsilon, 1, 1, 1) * SPENT**0.5
            far = sensitivity(SAMPLE_BOUND, 1, level="client", nonnegative=True)
            means = replace(means, clip=SAMPLE_BOUND, noise=far / mu)
        rule = DPFedAvg(BOUND, least_multiplier(epsilon, ROUNDS, CLIENTS, CLIENTS, mu=mu))
    run = Federation(
        initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), seed),
        digits(CLIENTS, seed=seed),
        NaiveMix(0.1) if algorithm == "naivemix" else Supervised(),
        Training(CLIENTS, epochs=5, batch_size=10, lr=0.05),
        exchange=means if algorithm == "naivemix" else None, updates=rule, seed=seed,
    )  # fmt: skip
    *_, last = run.run(ROUNDS, evaluate_every=ROUNDS)
    assert last.metrics is not None
    found = whole_of(run)
    return {
        "algorithm": algorithm, "asked": epsilon, "seed": seed,
        "accuracy": last.metrics["accuracy"],
        "epsilon": found.epsilon if found else None, "parts": found.parts,
        "noise_multiplier": rule.noise_multiplier if rule else 0.0,
    }  # fmt: skip


def measure_whole(seeds: int, to: Path) -> None:
    """Measure what one ε for all costs, go on with what the file lacks, and print the table."""
    records = json.loads(to.read_text())["records"] if to.is_file() else []
    done = [(r["algorithm"], r["asked"], r["seed"]) for r in records]
    to.parent.mkdir(parents=True, exist_ok=True)
    for seed, algorithm, epsilon in product(range(seeds), ("fedavg", "naivemix"), PROMISED):
        if (algorithm, epsilon, seed) not in done:
            records.append(whole(algorithm, epsilon, seed))
            write_whole(to, json.dumps({"delta": DELTA, "records": records}, indent=1).encode())
    print(whole_table(records))


def whole_table(records: list[dict[str, Any]]) -> str:
    """What one ε for all costs, as Markdown."""
    lines = [
        "| | no privacy | " + " | ".join(f"ε = {e:g}" for e in PROMISED[1:] if e) + " |",
        "|---" * (len(PROMISED) + 1) + "|",
    ]
    for algorithm in ("fedavg", "naivemix"):
        cells = []
        for epsilon in PROMISED:
            of = [r for r in records if (r["algorithm"], r["asked"]) == (algorithm, epsilon)]
            scores = [100 * r["accuracy"] for r in of]
            cells.append(f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}")
        lines.append(f"| {algorithm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or show earlier results."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("what", choices=[*TASKS, "show", "whole"])
    ask.add_argument("files", nargs="*", type=Path)
    ask.add_argument("--groups", default="5,20,all", help="M_k, separated by commas")
    ask.add_argument(
        "--epsilons",
        default=",".join(f"{e:g}" for e in EPSILONS),
        help="ε for which noise is calibrated, separated by commas",
    )
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--out", type=Path, default=Path("runs/privacy"))
    ask.add_argument("--device", default="cpu")
    ask.add_argument("--data", type=Path)
    ask.add_argument("--json", type=Path, default=Path("privacy.json"))
    ask.add_argument("--plot", type=Path)
    ask.add_argument("--rounds", type=int)
    ask.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no run after so many"
    )
    told = ask.parse_args()
    if told.what == "whole":
        measure_whole(told.seeds, told.json)
        return
    if told.what != "show":
        task = (
            TASKS[told.what]
            if told.rounds is None
            else replace(TASKS[told.what], rounds=told.rounds)
        )
        groups = told.groups.split(",")
        if unknown := set(groups) - {str(m) for m in GROUPS}:
            raise SystemExit(
                f"--groups {','.join(sorted(unknown))} is not in the grid; choose from 5,20,all"
            )
        epsilons = [e for e in EPSILONS if f"{e:g}" in told.epsilons.split(",")]
        if len(epsilons) < len(told.epsilons.split(",")):
            raise SystemExit(
                f"--epsilons {told.epsilons} is not in the grid; choose from 16,8,4,2,1"
            )
        grid = (
            (at | {"seed": seed}, spec.with_settings({"engine.device": told.device}))
            for seed in range(told.seeds)
            for at, spec in points(task, groups, epsilons, seed, told.data)
        )
        measure(
            task,
            grid,
            told.json,
            told.minutes,
            lambda spec: result(spec, task.tests, told.out, told.data),
        )
    all_said = [json.loads(file.read_text()) for file in told.files or [told.json]]
    if (
        len({json.dumps({key: one[key] for key in one if key != "records"}) for one in all_said})
        > 1
    ):
        raise SystemExit("these files hold different settings; show them one by one")
    said = all_said[0] | {"records": [record for one in all_said for record in one["records"]]}
    print(table(said))
    if told.plot:
        draw(said, told.plot)


if __name__ == "__main__":
    main()
