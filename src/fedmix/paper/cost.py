"""Time to 70 % and memory of a client (the text of the paper's appendix on cost, sec:cost)."""

import json
import math
from pathlib import Path

import torch

from fedmix.paper.base import PaperTable, Part, algorithms
from fedmix.paper.metrics import HOURS, Metric, Protocol
from fedmix.report.files import write
from fedmix.report.load import RunRecord
from fedmix.runs.run import Run

FILE = "memory.json"
NUMBERS: dict[str, tuple[float | None, ...]] = {
    "fedavg": (1.95, 46.0),
    "localmix": (None, 94.0),
    "fedmix": (1.94, 98.0),
}


def save_memory(run: Run, root: Path | None) -> None:
    """Train one round, one client at a time, and write its peak GPU memory to the run folder.

    The peak is counted beyond what was on the GPU before. Nothing is written for runs on a CPU.

    Args:
        run: A finished run.
        root: Folder with the hub's files; None downloads them.
    """
    path = run.folder / FILE
    if path.is_file() or not run.experiment.engine.device.startswith("cuda"):
        return
    federation = run.experiment.with_settings({"engine.name": "sequential"}).federation(root)
    torch.cuda.reset_peak_memory_stats(federation.device)
    before = torch.cuda.memory_allocated(federation.device)
    # the first of two rounds is not tested: a test takes large batches
    next(federation.run(2, evaluate_every=2))
    peak = torch.cuda.max_memory_allocated(federation.device)
    write(path, (json.dumps({"bytes": peak - before}) + "\n").encode())


def _memory(run: RunRecord, _: Protocol) -> float:
    return math.nan if run.memory is None else run.memory / 1e6


TABLE = PaperTable(
    name="cost",
    title="Hours to 70 % on CIFAR-10, and GPU memory of one client's training",
    source="sec:cost",
    rows=algorithms(*NUMBERS),
    columns=(
        Part("hours", "hours to 70 %", metric=HOURS),
        Part(
            "memory",
            "GPU memory, MB",
            metric=Metric("GPU memory, MB", _memory, more_is_better=False, decimals=0),
        ),
    ),
    paper=NUMBERS,
    pairs=(),
    notes=(
        "Hours are of this machine and engine, testing included: compare their ratio, not their "
        "size.",
        "Memory is the peak of one client at a time, over what lay on the GPU before (data and "
        "global weights); none on a CPU.",
    ),
    after=save_memory,
)
