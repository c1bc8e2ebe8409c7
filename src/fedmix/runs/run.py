"""A run in a folder of its own, which can be killed at any time and continues from its checkpoint.

`folder.py` lists the files of a run folder.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fedmix.core.devices import cores
from fedmix.core.errors import BadInput, Collapsed, Diverged, FedmixError, Interrupted
from fedmix.core.files import flat, write_whole
from fedmix.core.ranks import Ranks, here
from fedmix.core.reprs import counted
from fedmix.core.signals import heard
from fedmix.experiment.spec import HOW, SCHEMA, Experiment
from fedmix.experiment.values import old_identity, read_values, section_of, toml
from fedmix.runs.checkpoint import Checkpoint
from fedmix.runs.clients import clients_of, gallery_of
from fedmix.runs.environment import environment, known
from fedmix.runs.failure import forget_failure, record_failure
from fedmix.runs.folder import as_json, locked, writing
from fedmix.runs.metrics import cut, metrics_of, read_lines
from fedmix.runs.summary import Summary, privacy, read_summary, summarise
from fedmix.training.engines.choice import MOST, choose
from fedmix.training.federation import Federation
from fedmix.training.rounds import Rounds

CHECKPOINT_SECONDS = 5.0
LONGEST = 1 << 62  # more local steps than any run has
MAY_CHANGE = ("rounds", "engine.processes")
Listener = Callable[[dict[str, Any]], None]


class Spec(Protocol):
    """What a run folder needs to know of a run.

    `identity` is a hash of the settings that may not change when the run continues.
    """

    @property
    def rounds(self) -> int: ...
    @property
    def evaluate_every(self) -> int: ...
    @property
    def target(self) -> float | None: ...
    @property
    def per_round(self) -> int: ...
    @property
    def training(self) -> Any: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def identity(self) -> str: ...
    def values(self) -> dict[str, Any]: ...


class RunFolder:
    """A run in a folder of its own; subclasses define what trains in it.

    Args:
        experiment: The settings of the run.
        folder: The run folder.
    """

    may_change: tuple[str, ...] = MAY_CHANGE  # when a run continues

    def __init__(self, experiment: Spec, folder: Path | str) -> None:
        self.experiment, self.folder = experiment, Path(folder)
        self.checkpoint = Checkpoint(self.folder)

    def __repr__(self) -> str:
        what = f"{self.experiment.algorithm}, {counted(self.experiment.rounds, 'round')}"
        return f"{type(self).__name__}({str(self.folder)!r}: {what})"

    def _build(self, root: Path | None) -> Rounds:
        """Return what trains, before its first round."""
        raise NotImplementedError

    def _there(self) -> dict[str, Any]:
        """Return the settings in the folder's experiment.toml."""
        raise NotImplementedError

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run, or None; raises BadInput if its file is damaged."""
        return read_summary(self.folder)

    def begun(self) -> int:
        """Return how many of its rounds are done."""
        return min(self.checkpoint.rounds(), self.experiment.rounds)

    def finished(self) -> dict[str, Any] | None:
        """Return the summary if all rounds are done, else None.

        Raises:
            BadInput: The summary is damaged or of another experiment.
        """
        done = self.summary
        if done is None or done.get("rounds") != self.experiment.rounds:
            return None
        if not self._is_of_this(done.get("identity")):
            raise self._changed("summary")
        return done

    def execute(
        self,
        listen: Listener = lambda _: None,
        *,
        begin: Callable[[], None] = lambda: None,
        command: str = "",
        root: Path | None = None,
        stopped: Callable[[], bool] = lambda: False,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> Summary:
        """Run to the end, from the checkpoint if there is one, and return the summary.

        Where several ranks train together, all call it. The first has the folder, and what it is
        asked for here; the others get the state and the summary from it.

        Args:
            listen: Called with the metrics of every round.
            begin: Called before the first round, when all is loaded.
            command: Command line that environment.json records.
            root: Folder with the hub's files; None downloads them.
            stopped: Called after every round; True writes a checkpoint and stops the run.
            checkpoint_seconds: Time between two checkpoints.

        Raises:
            BadInput: The folder cannot be used.
            Interrupted: `stopped` returned True.
            Diverged, Collapsed: Training failed. failure.json records it, and there is no summary;
                run again, it fails in the same round.
        """
        ranks = here()
        if ranks.rank:
            return self._follow(ranks, root)
        with ranks.leading(), writing(self.folder), locked(self.folder):
            self._refuse_other()
            done: dict[str, Any] | None = ranks.first_sends(self.finished())
            if done is not None:
                return Summary(done, self.folder)
            federation, seconds = self._begin(ranks, root, command)
            begin()
            try:
                self._train(federation, seconds, listen, stopped, checkpoint_seconds)
            except (Diverged, Collapsed) as error:
                record_failure(self.folder, error)
                raise
            summary = self._finish(federation)
            ranks.agree(summary)
            return Summary(summary, self.folder)

    def _follow(self, ranks: Ranks, root: Path | None) -> Summary:
        """Do what `execute` does on every rank but the first; return the same."""
        with heard([signal.SIGINT], lambda: None):  # the first hears it too, and tells the others
            done: dict[str, Any] | None = ranks.first_sends()
            if done is not None:
                return Summary(done, self.folder)
            with ranks.agreeing():
                federation = self._build(root)
            state, tested, compiled = ranks.first_sends()
            federation.settle(self.experiment.rounds, compiled)
            if state is not None:
                federation.restore(state)
                federation.watch.tested = tested
            rounds, every = self.experiment.rounds, self.experiment.evaluate_every
            federation.run(rounds, evaluate_every=every).finish()
            return Summary(ranks.first_sends(), self.folder)

    def _train(
        self,
        federation: Rounds,
        seconds: float,
        listen: Listener,
        stopped: Callable[[], bool],
        checkpoint_seconds: float,
    ) -> None:
        """Train all rounds that are left; `seconds` were spent before."""
        saved_at = started = time.monotonic()
        about = {"experiment": self.experiment.identity}
        rounds = self.experiment.rounds
        with (self.folder / "metrics.jsonl").open("a") as metrics:
            for done in federation.run(rounds, evaluate_every=self.experiment.evaluate_every):
                spent = seconds + time.monotonic() - started
                line = metrics_of(done, federation, spent)
                metrics.write(json.dumps(line, allow_nan=False) + "\n")
                metrics.flush()
                if federation.round == 1 and (gallery := gallery_of(federation)) is not None:
                    write_whole(self.folder / "gallery.safetensors", gallery)
                last, stop = federation.stopped or federation.round == rounds, stopped()
                if last or stop or time.monotonic() - saved_at >= checkpoint_seconds:
                    os.fsync(metrics.fileno())
                    self.checkpoint.save(federation.state(), about | {"seconds": repr(spent)})
                    saved_at = time.monotonic()
                listen(line)
                if stop and not last:
                    raise Interrupted(
                        f"stopped after round {federation.round}; go on with: fedmix resume "
                        f"{self.folder}"
                    )

    def _refuse_other(self) -> None:
        """Raise BadInput if the folder holds another experiment, or this one with more rounds."""
        if not (self.folder / "experiment.toml").is_file():
            return
        there, rounds = self._there(), self.experiment.rounds
        if differs := _difference(there, self.experiment.values(), self.may_change):
            raise BadInput(
                f"{self.folder} holds another experiment ({differs}); choose another folder"
            )
        if (more := there["rounds"]) > rounds:
            raise BadInput(
                f"{self.folder} holds this run with {more} rounds, more than {rounds}; ask for "
                f"{more} or more"
            )

    def _is_of_this(self, identity: str | None) -> bool:
        """Whether a file with this identity belongs to this experiment."""
        return identity == self.experiment.identity

    def _changed(self, what: str) -> BadInput:
        return BadInput(
            f"{self.folder}: experiment.toml is not the one that its {what} was made with; "
            "restore it (only rounds may grow), or start a new run elsewhere"
        )

    def _begin(self, ranks: Ranks, root: Path | None, command: str) -> tuple[Rounds, float]:
        """Return the federation at the round of the checkpoint, and the seconds spent so far.

        The other ranks get the checkpoint's state.
        """
        for left in self.folder.glob(".*.partial"):
            left.unlink()  # left by a process that was killed while writing
        spec = toml(self.experiment.values()).encode()
        with ranks.agreeing():
            federation = self._build(root)
            privacy(federation)  # a missing package fails now, not after the last round
        saved = self.checkpoint.load()
        compiled = None if saved is None else self._compiled(federation)
        federation.settle(self.experiment.rounds, compiled)
        if saved is None:
            where = environment(federation.device, command)
            where |= federation.how() | federation.versions()
            write_whole(self.folder / "environment.json", as_json(where))
            write_whole(self.folder / "clients.json", clients_of(federation))
            write_whole(self.folder / "metrics.jsonl", b"")
            write_whole(self.folder / "experiment.toml", spec)
            ranks.first_sends((None, [], compiled))
            return federation, 0.0
        state, about = saved
        if not self._is_of_this(about.get("experiment")):
            raise self._changed("checkpoint")
        federation.restore(state)
        if federation.round > self.experiment.rounds:
            raise self.checkpoint.damaged(f"it is of round {federation.round}")
        path = self.folder / "metrics.jsonl"
        write_whole(path, cut(path, federation.round))
        federation.watch.tested = [
            (line["round"], line["accuracy"])
            for line in read_lines(path)
            if line.get("accuracy") is not None
        ]
        if about.get("experiment") != self.experiment.identity:  # an identity of the old kind
            self.checkpoint.save(state, about | {"experiment": self.experiment.identity})
        write_whole(self.folder / "experiment.toml", spec)  # it may ask for more rounds than before
        where = known(self.folder) | federation.how()
        write_whole(self.folder / "environment.json", as_json(where))
        try:
            seconds = float(about["seconds"])
        except (KeyError, ValueError):
            raise self.checkpoint.damaged("its seconds are no number") from None
        ranks.first_sends((state, federation.watch.tested, compiled))
        return federation, seconds

    def _compiled(self, federation: Rounds) -> bool:
        """Whether local steps were compiled when the run in the folder began.

        Folders from before this was chosen do not say: then it was as their settings say, or what
        the engine does by itself.
        """
        if said := known(self.folder).get("compiled"):
            return said == "yes"
        asked = section_of(self._there(), "engine").get("compile")
        return federation.compiled if asked is None else bool(asked)

    def _finish(self, federation: Rounds) -> dict[str, Any]:
        """Write the clients' scores and the summary, and return the summary."""
        spec = self.experiment
        self.checkpoint.drop_old_means()  # left by a process killed after its last checkpoint
        if federation.data.held_out.clients is not None:
            write_whole(self.folder / "clients.json", clients_of(federation, scored=True))
        lines = read_lines(self.folder / "metrics.jsonl")
        summary = summarise(lines, spec.identity, spec.algorithm, spec.target)
        summary |= privacy(federation)
        if said := federation.watch.warning():
            summary["warning"] = said
        write_whole(self.folder / "summary.json", as_json(summary))
        forget_failure(self.folder)
        return summary


class Run(RunFolder):
    """The run of an experiment, in a folder such as `out / experiment.id`.

    Args:
        experiment: The experiment.
        folder: The run folder.
        build: Makes what trains, if that is not the experiment's own federation.
    """

    experiment: Experiment
    may_change = ("rounds", *HOW)

    def __init__(
        self, experiment: Experiment, folder: Path | str, build: Callable[[], Rounds] | None = None
    ) -> None:
        super().__init__(experiment, folder)
        self.build = build

    @staticmethod
    def open(folder: Path | str) -> "Run":
        """Return the run in a folder, from its experiment.toml; raise BadInput if there is none."""
        folder = Path(folder)
        if not (folder / "experiment.toml").is_file():
            raise BadInput(
                f"{folder} holds no run: it has no experiment.toml; give a folder that 'fedmix "
                "run' made"
            )
        return Run(Experiment.load(folder / "experiment.toml"), folder)

    def processes(self, root: Path | None = None) -> int:
        """Return the number of processes to train on.

        It is what the settings say, else what the run in the folder began with, else what is chosen
        for this work and this machine.

        Args:
            root: Folder with the hub's files; None downloads them.
        """
        engine, training = self.experiment.engine, self.experiment.build_training()
        if engine.processes is not None:
            return engine.processes
        if (self.folder / "checkpoint.safetensors").is_file():
            began = known(self.folder).get("processes", "1")
            return int(began) if began in {str(n + 1) for n in range(MOST)} else 1
        most = choose(LONGEST, self.experiment.per_round, cores()).processes
        if most == 1 or engine.name != "vectorised" or engine.device != "cpu":
            return 1
        try:
            sizes = self.experiment.build_data(root).clients.sizes
        except FedmixError:  # the run itself says so
            return 1
        steps = training.steps_of_all(sizes, self.experiment.rounds)
        return choose(steps, training.per_round(len(sizes)), cores()).processes

    def restored(self, root: Path | None = None) -> Federation:
        """Return the federation at the last checkpoint; nothing is written.

        Args:
            root: Folder with the hub's files; None downloads them.

        Raises:
            BadInput: There is no checkpoint, or it is damaged.
        """
        saved = self.checkpoint.load()
        if saved is None:
            raise BadInput(f"{self.folder} has no checkpoint; start it with 'fedmix run' first")
        federation = self.experiment.federation(root)
        federation.restore(saved[0])
        return federation

    def _build(self, root: Path | None) -> Rounds:
        return self.build() if self.build else self.experiment.federation(root)

    def _there(self) -> dict[str, Any]:
        return Experiment.load(self.folder / "experiment.toml").values()

    def _is_of_this(self, identity: str | None) -> bool:
        if super()._is_of_this(identity):
            return True
        there = read_values(self.folder / "experiment.toml")
        if identity is None or Experiment.of(there).identity != self.experiment.identity:
            return False
        schema, colon, name = identity.partition(":")
        if colon and schema != str(SCHEMA):  # a hash of what differed from other defaults
            return name.rpartition("-")[0] == self.experiment.id.rpartition("-")[0]
        return identity == old_identity(there)


def folder_of(experiment: Experiment, out: Path, suffix: str = "") -> Path:
    """Return the folder of an experiment's run: `out / experiment.id`, with a suffix.

    A run begun when ids were a hash of all settings stays in its old folder. A folder that cannot
    be read is another run's.
    """
    folder, what = out / f"{experiment.id}{suffix}", experiment.id.rpartition("-")[0]
    if not folder.exists():
        for old in sorted(out.glob(f"{what}-{'[0-9a-f]' * 10}{suffix}/experiment.toml")):
            with suppress(BadInput):
                if Experiment.load(old).id == experiment.id:
                    return old.parent
    return folder


def kept(values: Mapping[str, Any], may_change: Sequence[str] = MAY_CHANGE) -> dict[str, str]:
    """Return the settings that may not change when a run continues, by dotted path."""
    return {key: value for key, value in flat(values) if key not in may_change}


def _difference(
    there: Mapping[str, Any], here: Mapping[str, Any], may_change: Sequence[str]
) -> str:
    """Describe the first setting that differs and may not; empty if there is none."""
    before, now = kept(there, may_change), kept(here, may_change)
    for key in now | before:
        if before.get(key) != now.get(key):
            hint = (
                "; fedmix.models.initialised gives the same every time"
                if key == "recorded.initial_weights"
                else ""
            )
            was, is_ = (settings.get(key, "not set") for settings in (before, now))
            return f"{key} is {was} there and {is_} here{hint}"
    return ""
