"""How long each preset's whole run takes by default, from a cold start, beside the plain loop.

It is calculated from measured steps: the start and the first rounds, with compilation, as measured,
and the rest of the run's local steps at the pace of one. Tests and the average of clients are left
out, since both ways have them. Files are those of `fedmix bench steps --out` with the variants
plain and default, and of `benchmarks/peers/run.py --out`.

    python benchmarks/presets.py FILE ...
"""

import json
import sys
from pathlib import Path
from typing import Any

from fedmix.experiment.presets import experiment

# The measured workload with the preset's model and batches, and a client's steps in a round.
PRESETS = {
    "digits": (("digits",), 40),
    "femnist": (("lenet",), 210),
    "cifar10": (("vgg",), 168),
    "cifar100": (("vgg",), 500),
    "shakespeare": (("lstm", "charlstm"), 600),
}
DEFAULT = ("default", "fedmix")  # as bench and as peers call it


def seconds(record: dict[str, Any], steps: int) -> float:
    """Seconds for so many local steps of single clients, from the start of the program."""
    one = record["ms_per_step"] / record["clients"] / 1000
    return float(record.get("startup_s", 0.0) + record.get("warmup_s", 0.0) + steps * one)


def shown(duration: float) -> str:
    return f"{duration:.0f} s" if duration < 600 else f"{duration / 60:.0f} min"


def table(*files: Path) -> str:
    """The presets whose model was measured, as Markdown."""
    records = [r for file in files for r in json.loads(file.read_text())["records"]]
    lines = [
        "| preset | algorithm | local steps | plain loop | default | of it, start | times plain |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for preset, (workloads, each) in PRESETS.items():
        spec = experiment(preset, "fedavg")
        steps = spec.rounds * spec.per_round * each
        for algorithm in ("fedavg", "fedmix"):
            mine = [
                r for r in records if r["workload"] in workloads and r["algorithm"] == algorithm
            ]
            plain = next((r for r in mine if r["variant"] == "plain"), None)
            ours = next((r for r in mine if r["variant"] in DEFAULT), None)
            if plain is None or ours is None:
                continue
            lines.append(
                f"| {preset} | {algorithm} | {steps:,} | {shown(seconds(plain, steps))} "
                f"| {shown(seconds(ours, steps))} | {seconds(ours, 0):.0f} s "
                f"| {seconds(plain, steps) / seconds(ours, steps):.2f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(*map(Path, sys.argv[1:])))
