"""Run folders as 'fedmix run' writes them, made up."""

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.numpy import save_file

from fedmix.runs.summary import HIGHER_IS_BETTER, scores_of

SPEED = {"fedavg": 14.0, "naivemix": 10.0, "fedmix": 7.0}
TOP = {"fedavg": 0.9, "naivemix": 0.94, "fedmix": 0.97}


def spec(
    algorithm: str = "fedmix", seed: int = 0, rounds: int = 40, **sections: Mapping[str, Any]
) -> dict[str, Any]:
    """An experiment's settings; sections are laid over the defaults."""
    base: dict[str, Any] = {
        "rounds": rounds,
        "evaluate_every": 1,
        "target": 0.88,
        "seed": seed,
        "data": {"name": "digits", "clients": 20, "classes_per_client": 2},
        "model": {"name": "digits_cnn", "initialise": "he"},
        "objective": {"name": algorithm, "mu": 0.0},
        "training": {
            "clients_per_round": 5,
            "epochs": 5,
            "batch_size": 10,
            "lr": 0.01,
            "momentum": 0.9,
        },
        "engine": {"name": "vectorised", "device": "cpu"},
    }
    if algorithm != "fedavg":
        base["objective"]["lam"] = 0.05
        base["exchange"] = {"m": "all", "noise": 0.0, "split": "random"}
    for name, values in sections.items():
        base[name] = base.get(name, {}) | dict(values)
    return base


def metrics(settings: Mapping[str, Any], done: int | None = None) -> list[dict[str, Any]]:
    """A learning curve with noise."""
    name = settings["objective"]["name"]
    rng = np.random.default_rng([settings["seed"], len(name)])
    lines, seconds = [], 0.0
    for r in range(1, (done or settings["rounds"]) + 1):
        seconds += 0.4 + 0.2 * float(rng.random())
        accuracy = min(
            1.0,
            TOP.get(name, 0.9) * (1 - 0.8 * math.exp(-r / SPEED.get(name, 9.0)))
            + float(rng.normal(0, 0.02)),
        )
        means = 0 if name == "fedavg" else 5920
        line = {"round": r, "local_loss": 1.5 * math.exp(-r / 9), "seconds": seconds}
        if r % settings["evaluate_every"] == 0:
            line |= {"accuracy": accuracy, "loss": 2.3 * (1 - accuracy) + 0.1}
        sent = {
            "bytes_up": means + 290_000 * r,
            "bytes_down": 5 * means + 290_000 * r,
            "means_up": means,
            "means_down": 5 * means,
        }
        lines.append(line | sent | {"models_up": 290_000 * r, "models_down": 290_000 * r})
    return lines


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Write the metrics, and the scores in the summary if there is one."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = folder / "summary.json"
    name = next((name for name in HIGHER_IS_BETTER for line in lines if name in line), None)
    if name and summary.exists():
        target = tomllib.loads((folder / "experiment.toml").read_text()).get("target")
        scores = [(line["round"], line[name]) for line in lines if name in line]
        tests = [(r, s if math.isfinite(s) else None) for r, s in scores]
        said = json.loads(summary.read_text()) | scores_of(name, tests, target)
        summary.write_text(json.dumps(said))


def run_folder(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    done: int | None = None,
    command: str = "fedmix run digits",
    classes: int = 10,
) -> Path:
    """A whole run folder; unfinished after `done` rounds if given."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(tomli_w.dumps(settings))
    if done is None:
        privacy = (
            "No formal guarantee: means of m=all samples with no noise."
            if "exchange" in settings
            else "No means are exchanged."
        )
        (folder / "summary.json").write_text(
            json.dumps({"score_name": "accuracy", "rounds": settings["rounds"], "privacy": privacy})
        )
    write_lines(folder, metrics(settings, done))
    environment = {
        "fedmix": "0.1.0",
        "python": "3.11.4",
        "torch": "2.13.0",
        "device": "cpu (x86_64, 2 threads)",
    }
    about = {"commit": "0123456789ab", "started": "2026-01-05T10:00:00+00:00", "command": command}
    (folder / "environment.json").write_text(json.dumps(environment | about))
    rng = np.random.default_rng(settings["seed"])
    clients = settings["data"]["clients"]
    counts = np.zeros((clients, classes), int)
    for row in counts:
        row[rng.choice(classes, 2, replace=False)] = rng.integers(20, 60, 2)
    (folder / "clients.json").write_text(
        json.dumps({"classes": classes, "sizes": counts.sum(1).tolist(), "counts": counts.tolist()})
    )
    if "exchange" in settings:
        samples = rng.random((12, 1, 8, 8), np.float32)
        save_file(
            {"means": samples.mean(0, keepdims=True).repeat(12, 0), "samples": samples},
            folder / "gallery.safetensors",
        )
    return folder


def scored(folder: Path, seed: int, scores: list[float], **sections: Mapping[str, Any]) -> Path:
    """A run with these accuracies, 2 s and 10 MB a round."""
    made = run_folder(folder, spec("fedmix", seed, len(scores), **sections))
    lines = [
        {
            "round": r,
            "accuracy": a,
            "seconds": 2.0 * r,
            "bytes_up": 4_000_000 * r,
            "bytes_down": 6_000_000 * r,
        }
        for r, a in enumerate(scores, 1)
    ]
    write_lines(made, lines)
    return made


def study(folder: Path, rounds: int = 40) -> Path:
    """Three algorithms with three seeds each."""
    for algorithm in SPEED:
        for seed in range(3):
            command = (
                f"fedmix run digits --algorithm {algorithm} --seed {seed} --rounds {rounds} "
                "--out runs"
            )
            run_folder(
                folder / f"digits-{algorithm}-s{seed}",
                spec(algorithm, seed, rounds),
                command=command,
            )
    return folder
