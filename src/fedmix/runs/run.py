"""Run folders: everything a run says is in one, it can be killed at any moment, and it goes on
where it was.

    experiment.toml         the spec                  metrics.jsonl           one object per round
    environment.json        where and how it ran      checkpoint.safetensors  what the next round depends on
    clients.json            who holds how much        summary.json            written last: the run is done
    gallery.safetensors     some of the exchanged means, for image data
    means-V.safetensors     version V of the released means, of which the checkpoint names one; written once

Files are written beside and renamed, so each is whole or absent; metrics are appended, and cut back
to the checkpoint when a run goes on. Where clients have test samples of their own, clients.json
gets their scores when the run is done. No file is ever unpickled.
"""

import errno
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fedmix.core.errors import BadInput, FedmixError, Interrupted
from fedmix.core.files import flat, parse_json, printable, read_within, refuse_link, write_whole
from fedmix.data.transforms import Images
from fedmix.experiment.spec import Experiment, toml
from fedmix.privacy.accounting import upwards
from fedmix.privacy.of_run import guarantee_of
from fedmix.runs.environment import environment
from fedmix.training.federation import Federation
from fedmix.training.rounds import Round, Rounds

CHECKPOINT_SECONDS = 5.0
GALLERY = 12
LARGEST = 256 << 20  # bytes of a file that is read whole
MEANS = re.compile(r"means-[0-9]{1,19}\.safetensors")
RELEASED = (
    "exchange.owner",
    "exchange.x",
    "exchange.y",
)  # the large part of a state: the same until the next version
MAY_CHANGE = ("rounds", "engine.processes")  # when a run goes on
Listener = Callable[[dict[str, Any]], None]


class Spec(Protocol):
    """What is to be known of a run; `identity` is a hash of what may not change when it goes on."""

    @property
    def rounds(self) -> int: ...
    @property
    def evaluate_every(self) -> int: ...
    @property
    def target(self) -> float | None: ...
    @property
    def training(self) -> Any: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def identity(self) -> str: ...
    def values(self) -> dict[str, Any]: ...


class RunFolder:
    """A run in a folder of its own. What trains in it is left to those that know."""

    def __init__(self, experiment: Spec, folder: Path) -> None:
        self.experiment, self.folder = experiment, folder
        self._means: str | None = None  # the file of released means that is known to be whole

    def _build(self, root: Path | None) -> Rounds:
        """What trains, before its first round."""
        raise NotImplementedError

    def _there(self) -> dict[str, Any]:
        """The settings in the folder's experiment.toml."""
        raise NotImplementedError

    @property
    def summary(self) -> dict[str, Any] | None:
        """What a finished run came to."""
        path = self.folder / "summary.json"
        if not path.is_file():
            return None
        content = self._content(path.name)
        try:
            said = parse_json(content)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise BadInput(
                f"{path} is damaged; delete it and go on with: fedmix resume {self.folder}"
            )
        return said

    def finished(self) -> dict[str, Any] | None:
        """The summary, if all rounds that are asked for are done."""
        done = self.summary
        if done is None or done.get("rounds") != self.experiment.rounds:
            return None
        if done.get("identity") != self.experiment.identity:
            raise self._changed("summary")
        return done

    def execute(
        self,
        listen: Listener = lambda _: None,
        *,
        command: str = "",
        root: Path | None = None,
        stopped: Callable[[], bool] = lambda: False,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> dict[str, Any]:
        """Run to the end, from the checkpoint if there is one; the summary.

        `listen` gets the metrics of every round.

        `stopped` is asked after every round; once it says so, a checkpoint is written and
        Interrupted raised. A run that diverged or collapsed has no summary; going on, it ends in
        the same round again.
        """
        with writing(self.folder), locked(self.folder):
            self._refuse_other()
            if (done := self.finished()) is not None:
                return done
            federation, seconds = self._begin(root, command)
            saved_at = started = time.monotonic()
            with (self.folder / "metrics.jsonl").open("a") as metrics:
                for done_round in federation.run(
                    self.experiment.rounds, evaluate_every=self.experiment.evaluate_every
                ):
                    spent = seconds + time.monotonic() - started
                    line = _line(done_round, federation, spent)
                    metrics.write(json.dumps(line, allow_nan=False) + "\n")
                    metrics.flush()
                    if federation.round == 1:
                        _gallery(federation, self.folder / "gallery.safetensors")
                    last = federation.stopped or federation.round == self.experiment.rounds
                    stop = stopped()
                    if last or stop or time.monotonic() - saved_at >= checkpoint_seconds:
                        os.fsync(metrics.fileno())
                        self._checkpoint(federation, spent)
                        saved_at = time.monotonic()
                    listen(line)
                    if stop and not last:
                        raise Interrupted(
                            f"stopped after round {federation.round}; go on with: fedmix resume "
                            f"{self.folder}"
                        )
            return self._finish(federation)

    def _refuse_other(self) -> None:
        """Refuse a folder that holds another experiment, or this one with more rounds."""
        if not (self.folder / "experiment.toml").is_file():
            return
        there, rounds = self._there(), self.experiment.rounds
        if differs := _difference(there, self.experiment.values()):
            raise BadInput(
                f"{self.folder} holds another experiment ({differs}); choose another folder"
            )
        if (more := there["rounds"]) > rounds:
            raise BadInput(
                f"{self.folder} holds this run with {more} rounds, more than {rounds}; ask for "
                f"{more} or more"
            )

    def _changed(self, what: str) -> BadInput:
        return BadInput(
            f"{self.folder}: experiment.toml is not the one that its {what} was made with; "
            "restore it (only rounds may grow), or start a new run elsewhere"
        )

    def _begin(self, root: Path | None, command: str) -> tuple[Rounds, float]:
        """The federation at the round it had reached, and the seconds spent so far."""
        for left in self.folder.glob(".*.partial"):
            left.unlink()  # by a process that was killed in mid-write
        federation, spec = self._build(root), toml(self.experiment.values()).encode()
        privacy(federation)  # which may lack a package: better now than after the last round
        saved = self._saved()
        if saved is None:
            write_whole(
                self.folder / "environment.json", _json(environment(federation.device, command))
            )
            write_whole(self.folder / "clients.json", _clients(federation))
            write_whole(self.folder / "metrics.jsonl", b"")
            write_whole(self.folder / "experiment.toml", spec)
            return federation, 0.0
        state, about = saved
        if about.get("experiment") != self.experiment.identity:
            raise self._changed("checkpoint")
        federation.restore(state)
        if federation.round > self.experiment.rounds:
            raise self._damaged("checkpoint.safetensors", f"it is of round {federation.round}")
        self._cut_metrics(federation.round)
        federation.watch.tested = self._tested()
        write_whole(self.folder / "experiment.toml", spec)  # it may ask for more rounds than before
        try:
            return federation, float(about["seconds"])
        except (KeyError, ValueError):
            raise self._damaged("checkpoint.safetensors", "its seconds are no number") from None

    def _saved(self) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        if not (self.folder / "checkpoint.safetensors").is_file():
            return None
        state, about = self._read("checkpoint.safetensors")
        self._means = about.get("means")
        if self._means:
            if not MEANS.fullmatch(self._means):  # it is not to lead out of the folder
                raise self._damaged(
                    "checkpoint.safetensors", f"its means are in {printable(self._means)}"
                )
            state |= self._read(self._means)[0]
        return state, about

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        from safetensors import SafetensorError, safe_open

        path = self.folder / name
        if path.is_symlink():
            raise self._damaged(name, "it is a link to a file elsewhere")
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 - not a dict
        except (
            SafetensorError,
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RuntimeError,
        ) as error:
            raise self._damaged(
                name, str(error)
            ) from None  # what torch makes of a tensor's kind and shape may fail as well

    def _damaged(self, name: str, reason: str) -> BadInput:
        why = printable(reason.strip().split("\n")[0])
        return BadInput(
            f"{self.folder / name} is damaged ({why}); delete checkpoint.safetensors to start this "
            "run anew"
        )

    def _content(self, name: str) -> bytes:
        return read_within(
            self.folder / name,
            LARGEST,
            f"restore it, or delete {self.folder} to start anew",
            links=False,
        )

    def _checkpoint(self, federation: Rounds, seconds: float) -> None:
        """Write what the next round depends on: a new version of the released means first; the old
        one goes last.
        """
        from safetensors.torch import save

        about = {"experiment": self.experiment.identity, "seconds": repr(seconds)}
        state = {name: t.contiguous() for name, t in federation.state().items()}
        released = {name: state.pop(name) for name in RELEASED if name in state}
        if released:
            about["means"] = f"means-{int(state['exchange.version'])}.safetensors"
            if about["means"] != self._means:
                write_whole(self.folder / about["means"], save(released))
                self._means = about["means"]
        write_whole(self.folder / "checkpoint.safetensors", save(state, about))
        self._drop_old_means()

    def _drop_old_means(self) -> None:
        for old in self.folder.glob("means-*.safetensors"):
            if old.name != self._means:
                old.unlink()

    def _cut_metrics(self, rounds: int) -> None:
        """Drop what was written after the checkpoint, a torn last line included; it will come
        again.
        """
        path = self.folder / "metrics.jsonl"
        lines = self._content(path.name).split(b"\n")[:rounds] if path.is_file() else []
        if [_round_of(line) for line in lines] != list(range(1, rounds + 1)):
            raise BadInput(
                f"{path} lacks some of the {rounds} rounds before the checkpoint; delete "
                "checkpoint.safetensors to start anew"
            )
        write_whole(path, b"".join(line + b"\n" for line in lines))

    def _lines(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()
        ]

    def _tested(self) -> list[tuple[int, float]]:
        """The rounds that were tested, and their accuracies."""
        return [
            (line["round"], line["accuracy"])
            for line in self._lines()
            if line.get("accuracy") is not None
        ]

    def _finish(self, federation: Rounds) -> dict[str, Any]:
        self._drop_old_means()  # left by a process that was killed after its last checkpoint
        if federation.data.test_clients is not None:
            write_whole(
                self.folder / "clients.json",
                _clients(federation, federation.evaluate_clients().scores.tolist()),
            )
        summary = summarise(self._lines(), self.experiment) | privacy(federation)
        if said := federation.watch.warning():
            summary["warning"] = said
        write_whole(self.folder / "summary.json", _json(summary))
        return summary


class Run(RunFolder):
    """The run of an experiment, in a folder such as `out / experiment.id`; `Run.open(folder)` goes
    on with one.

    `build` makes what trains, where that is not the experiment's own federation.
    """

    experiment: Experiment

    def __init__(
        self, experiment: Experiment, folder: Path, build: Callable[[], Rounds] | None = None
    ) -> None:
        super().__init__(experiment, folder)
        self.build = build

    @staticmethod
    def open(folder: Path) -> "Run":
        """The run in a folder, by its experiment.toml."""
        if not (folder / "experiment.toml").is_file():
            raise BadInput(
                f"{folder} holds no run: it has no experiment.toml; give a folder that 'fedmix "
                "run' made"
            )
        return Run(Experiment.load(folder / "experiment.toml"), folder)

    def restored(self, root: Path | None = None) -> Federation:
        """The federation as the last checkpoint left it, to look at; nothing is written."""
        saved = self._saved()
        if saved is None:
            raise BadInput(f"{self.folder} has no checkpoint; start it with 'fedmix run' first")
        federation = self.experiment.federation(root)
        federation.restore(saved[0])
        return federation

    def _build(self, root: Path | None) -> Rounds:
        return self.build() if self.build else self.experiment.federation(root)

    def _there(self) -> dict[str, Any]:
        return Experiment.load(self.folder / "experiment.toml").values()


def kept(values: Mapping[str, Any]) -> dict[str, str]:
    """By dotted path, the settings that stay the same when a run goes on."""
    return {key: value for key, value in flat(values) if key not in MAY_CHANGE}


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first setting that may not differ and does; nothing if there is none."""
    before, now = kept(there), kept(here)
    for key in now | before:
        if before.get(key) != now.get(key):
            hint = (
                "; fedmix.models.initialised gives the same every time"
                if key == "recorded.initial_weights"
                else ""
            )
            return f"{key} is {before.get(key, 'not set')} there and {now.get(key, 'not set')} here{hint}"
    return ""


def summarise(lines: list[dict[str, Any]], experiment: Spec) -> dict[str, Any]:
    """Last, best, mean of the last ten evaluations, rounds to the target, seconds and bytes."""
    score_name = "accuracy" if "accuracy" in lines[-1] else "mse"
    better = max if score_name == "accuracy" else min
    scores = [(line["round"], line[score_name]) for line in lines if score_name in line]
    finite = [(r, s) for r, s in scores if s is not None]
    best_round, best = better(finite, key=lambda pair: pair[1]) if finite else (None, None)
    target = experiment.target
    reached = [
        r
        for r, s in finite
        if target is not None and (s >= target if better is max else s <= target)
    ]
    final = lines[-1]
    return {
        "rounds": final["round"],
        "identity": experiment.identity,
        "algorithm": experiment.algorithm,
        "score_name": score_name,
        "last": scores[-1][1],
        "best": best,
        "best_round": best_round,
        "mean_last_ten": float(np.mean(lately))
        if None not in (lately := [s for _, s in scores[-10:]])
        else None,
        "target": target,
        "rounds_to_target": reached[0] if reached else None,
        "seconds": final["seconds"],
        "bytes_up": final["bytes_up"],
        "bytes_down": final["bytes_down"],
    }


def privacy(federation: Rounds) -> dict[str, Any]:
    """What the releases so far guarantee, in a sentence and in numbers; None where they guarantee
    nothing.
    """
    sample = guarantee_of(federation)
    numbers = {
        "epsilon": sample.epsilon if sample else None,
        "delta": sample.delta,
        "releases": sample.releases,
    }
    said = str(sample)
    if sample:
        client = guarantee_of(federation, level="client")
        said += (
            f" For a whole client replaced: ε = {upwards(client.epsilon)}."
            if client
            else " None for a whole client."
        )
        said += " Weights, sizes and who takes part are not covered."
    return {"privacy": said, **numbers}


def _line(done: Round, federation: Rounds, seconds: float) -> dict[str, Any]:
    total = federation.traffic
    sent = {
        "bytes_up": total.up,
        "bytes_down": total.down,
        **{k: v for k, v in asdict(total).items() if k != "pool"},
    }
    scores = {
        name: value if math.isfinite(value) else None
        for name, value in (done.metrics or {}).items()
    }
    return {
        "round": done.round,
        **scores,
        "local_loss": done.local_loss,
        "seconds": round(seconds, 3),
        **sent,
        **done.notes,
    }


def _round_of(line: bytes) -> Any:
    """The round of a line that has all that a summary needs; None for others."""
    try:
        said = parse_json(line)
    except ValueError:
        return None
    if (
        not isinstance(said, dict)
        or not {"round", "seconds", "bytes_up", "bytes_down"} <= said.keys()
    ):
        return None
    return (
        said["round"]
        if all(value is None or type(value) in (int, float) for value in said.values())
        else None
    )


def _clients(federation: Rounds, scores: list[float] | None = None) -> bytes:
    """Who holds how much, and the last model's score on each client's own test samples where that
    is known.
    """
    clients = federation.holdings()
    if scores is not None:
        clients["scores"] = [score if math.isfinite(score) else None for score in scores]
    return _json(clients, indent=None)


def _gallery(federation: Rounds, path: Path) -> None:
    """Some of the means that this run exchanges, beside the single samples that m=1 would have
    sent.
    """
    data, exchange = federation.data, federation.exchange
    if (
        exchange is None
        or federation.needs.layer
        or exchange.how.source != "pool"
        or not isinstance(data.transform, Images)
    ):
        return
    from safetensors.torch import save

    assert exchange.pool is not None
    samples = data.units(
        np.stack([data.x[data.clients[k][0]] for k in range(min(GALLERY, len(data.clients)))])
    )
    write_whole(
        path,
        save({"means": exchange.pool.x[:GALLERY].contiguous(), "samples": samples.contiguous()}),
    )


def _json(value: Mapping[str, Any], indent: int | None = 1) -> bytes:
    return (json.dumps(value, indent=indent) + "\n").encode()


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Keep other processes out of a folder; one in which nothing was begun is removed again."""
    path = folder / name
    refuse_link(path)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(
                f"another process is running in {folder}; wait for it or stop it first"
            ) from None
        try:
            yield
        finally:
            with suppress(OSError):  # another process came, or the folder went
                if list(folder.iterdir()) == [path]:
                    path.unlink()
                    folder.rmdir()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make the folder, and turn what goes wrong with it into a sentence; no folders are left that
    were made for nothing.
    """
    made: list[Path] = []
    try:
        made += [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FedmixError(
                f"the disk of {folder} is full; make room and start the same again: it goes on "
                "where it was"
            ) from error
        if error.errno in (
            errno.EACCES,
            errno.EROFS,
            errno.EPERM,
            errno.ENOTDIR,
            errno.EEXIST,
            errno.ENOENT,
        ):
            raise BadInput(
                f"{folder} cannot be written ({error.strerror}); choose another folder"
            ) from error
        raise
    finally:
        with suppress(OSError):  # they hold something
            for path in filter(Path.exists, made):
                path.rmdir()
