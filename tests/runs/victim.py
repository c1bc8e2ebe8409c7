"""Starts a run in a child again and again and kills it with SIGKILL at random moments, until it is
done.

    python -m tests.runs.victim FOLDER SEED

Prints how many children were killed, and how many of them while a file was being written.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path
from unittest import mock

import torch

from fedmix.experiment.presets import experiment
from fedmix.runs import checkpoint, run

QUICK = {"rounds": 14, "training.epochs": 1, "data.clients": 10, "data.local_share": 0.2}
SPEC = experiment("digits", "fedmix", seed=1).with_settings(QUICK)


def slowly(path: Path, content: bytes) -> None:
    """Like write_whole, but in pieces, with a note on disk while it is at it, so that kills fall
    inside a write too.
    """
    partial = path.with_name(f".{path.name}.partial")
    note = path.with_name(".writing")
    note.touch()
    with partial.open("wb") as file:
        for start in range(0, len(content), max(1, len(content) // 4)):
            file.write(content[start : start + max(1, len(content) // 4)])
            file.flush()
            time.sleep(0.01)
    partial.replace(path)
    note.unlink()


def child(folder: Path) -> None:
    with (
        mock.patch.object(run, "write_whole", slowly),
        mock.patch.object(checkpoint, "write_whole", slowly),
    ):
        run.Run(SPEC, folder).execute(checkpoint_seconds=0.0)


def main() -> None:
    folder, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    torch.set_num_threads(1)
    kills = writing = 0
    while True:
        (folder / ".writing").unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            try:
                child(folder)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        end = time.monotonic() + (chance.uniform(0.1, 0.8) if kills < 12 else 300)
        while time.monotonic() < end or (
            kills % 2 and not (folder / ".writing").exists()
        ):  # every other kill: in a write
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                print(kills, writing)
                sys.exit(os.waitstatus_to_exitcode(status))
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
        writing += (folder / ".writing").exists()


if __name__ == "__main__":
    main()
