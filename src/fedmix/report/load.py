"""Read run folders, and runs that were packed into a store. Nothing in them is trusted."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.files import flat, printable
from fedmix.core.reprs import counted, in_words
from fedmix.core.validation import is_number
from fedmix.experiment.spec import HOW
from fedmix.experiment.values import algorithm_of
from fedmix.report.files import read, read_json, read_toml, taken_from
from fedmix.report.metrics import Array, packed_metrics, read_metrics
from fedmix.runs.store import Packed, packed_in
from fedmix.runs.summary import HIGHER_IS_BETTER, scores_of

LEVELS = 2  # how deep below a given folder to look for runs
SCORES = ("last", "best", "mean_last_ten", "rounds_to_target")  # in a summary


@dataclass(frozen=True)
class Clients:
    """What each client holds.

    Attributes:
        sizes: Number of samples of each client.
        counts: Samples by client and class; None if there are no classes.
        scores: Score on the client's own test samples, NaN if not finite; None if clients have no
            test samples or the run is not done.
    """

    sizes: Array
    counts: Array | None
    scores: Array | None


@dataclass(frozen=True)
class Gallery:
    """Exchanged means and single samples, both (g, C, H, W) in [0, 1]."""

    means: Array
    samples: Array


class Scores(NamedTuple):
    """The last score, the best, the mean of the last ten, and the rounds to the target.

    A score is NaN if there is none yet, and infinite if it is not finite. `to_target` is NaN if the
    target was not reached.
    """

    last: float
    best: float
    last_ten: float
    to_target: float


@dataclass(frozen=True)
class RunRecord:
    """The content of a run folder.

    Attributes:
        folder: The run folder; of a packed run the file of the store and the run's name.
        algorithm: Name of the algorithm.
        settings: Settings by dotted path, without the seed, those that say how a run is computed
            (`spec.HOW`), and the hashes of recorded runs.
        seed: The seed.
        target: Score to reach.
        environment: Content of environment.json.
        metrics: A column for each metric, see `fedmix.report.metrics.read_metrics`.
        score: Name of the score; None before the first test.
        scores: The scores.
        finished: Whether all rounds are done.
        privacy: The sentence on privacy in the summary.
        epsilon: ε of all that leaves clients, for one client; None where nothing is guaranteed.
        clients: What clients hold.
        gallery: Exchanged means and samples.
        memory: Peak of a client's GPU memory in bytes, if it was measured.
    """

    folder: Path
    algorithm: str
    settings: Mapping[str, str]
    seed: str
    target: float | None
    environment: Mapping[str, str]
    metrics: Mapping[str, Array]
    score: str | None
    scores: Scores
    finished: bool
    privacy: str
    epsilon: float | None
    clients: Clients | None
    gallery: Gallery | None
    memory: float | None = None

    def __repr__(self) -> str:
        score = {} if self.score is None else {self.score: self.scores.last}
        said = ", ".join(filter(None, [counted(self.rounds, "round"), in_words(score)]))
        return f"RunRecord({self.folder.name}: {said}{'' if self.finished else ', unfinished'})"

    @property
    def rounds(self) -> int:
        """Number of rounds that are done."""
        return int(self.metrics["round"].max(initial=0))


def find_runs(folders: Sequence[Path]) -> list[Path | Packed]:
    """Return the runs in these folders and stores, or up to two levels below them, each once.

    A run that lies beside a store that holds it too is its folder.

    Raises:
        BadInput: A folder has no runs.
    """
    found: dict[Path, Path | Packed] = {}
    for folder in folders:
        runs = list(_runs(folder, LEVELS))
        if not runs:
            raise BadInput(
                f"{folder} holds no runs; give a folder that 'fedmix run' made, or one that holds "
                "such folders"
            )
        for run in runs:
            beside = run.path.parent.parent / run.name if isinstance(run, Packed) else run
            found.setdefault(beside.resolve(), run)
    if not found:
        raise BadInput("no run folders were given; give at least one that 'fedmix run' made")
    return list(found.values())


def load_runs(folders: Sequence[Path | str] | Path | str) -> list[RunRecord]:
    """Load the runs in these folders and stores, or up to two levels below them, each once.

    One folder may be given by itself.

    Raises:
        BadInput: A folder has no runs, a run is damaged, or the runs have different scores.
    """
    given = [folders] if isinstance(folders, Path | str) else folders
    records = [load(run) for run in find_runs([Path(folder) for folder in given])]
    scores = {record.score: record for record in records if record.score}
    if len(scores) > 1:
        said = " and ".join(f"{score} in {record.folder}" for score, record in scores.items())
        raise BadInput(f"these runs measure different things ({said}); report them apart")
    return records


def load(run: Path | Packed) -> RunRecord:
    """Load the record of a run folder or a packed run; raise BadInput if it is damaged."""
    if isinstance(run, Packed):
        folder, parts = run.path, run.content
        metrics = packed_metrics(parts.get("metrics"), folder)
    else:
        folder, parts = run, _parts(run)
        metrics = read_metrics(folder / "metrics.jsonl")
    spec, summary = parts["experiment"], parts.get("summary")
    target, rounds = spec.get("target"), spec.get("rounds")
    if target is not None and (isinstance(target, bool) or not isinstance(target, int | float)):
        raise BadInput(
            f"{folder / 'experiment.toml'}: target is not a number; restore the file or leave this "
            "run out"
        )
    # A run that is continued to more rounds keeps its old summary until it is done.
    grown = isinstance(rounds, int) and metrics["round"].max(initial=0) < rounds
    target = None if target is None else float(target)
    score = next((name for name in HIGHER_IS_BETTER if not np.isnan(metrics[name]).all()), None)
    said = _so_far(score, metrics, target) if summary is None or grown else summary
    settings = {key: value for key, value in flat(spec) if not key.startswith("recorded.")}
    for how in HOW:
        settings.pop(how, None)
    return RunRecord(
        folder=folder,
        algorithm=printable(algorithm_of(spec)),
        seed=settings.pop("seed", "0"),
        settings=settings,
        target=target,
        environment={printable(k): printable(v) for k, v in parts.get("environment", {}).items()},
        metrics=metrics,
        score=score,
        scores=_scores_in(said, folder / "summary.json") if score else Scores(*[math.nan] * 4),
        finished=summary is not None and not grown,
        privacy=printable((summary or {}).get("privacy") or ""),
        epsilon=_epsilon((summary or {}).get("whole")),
        clients=_clients(parts, folder / "clients.json"),
        gallery=None if isinstance(run, Packed) else _gallery(folder / "gallery.safetensors"),
        memory=_memory(parts, folder / "memory.json"),
    )


def _parts(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's files by name, as a store holds it."""
    files = {name: folder / f"{name}.json" for name in ("environment", "summary", "memory")}
    parts = {name: read_json(path) for name, path in files.items() if path.exists()}
    if (path := folder / "clients.json").exists():
        clients = read_json(path)
        parts |= {"client_scores": clients.pop("scores", None), "clients": clients}
    return {"experiment": read_toml(folder / "experiment.toml"), **parts}


def _epsilon(whole: object) -> float | None:
    found = whole.get("epsilon") if isinstance(whole, dict) else None
    return None if found is None or not is_number(found) else float(found)


def _so_far(
    score: str | None, metrics: Mapping[str, Array], target: float | None
) -> dict[str, Any]:
    """Return the scores that the summary of a run would have if it ended now."""
    if score is None:
        return {}
    tests = zip(metrics["round"].tolist(), metrics[score].tolist(), strict=True)
    known = [(int(r), s if math.isfinite(s) else None) for r, s in tests if not math.isnan(s)]
    return scores_of(score, known, target)


def _scores_in(said: Mapping[str, Any], path: Path) -> Scores:
    """Return the scores in a summary; raise BadInput if they are not numbers."""
    values = [said.get(name, "") for name in SCORES]
    if any(isinstance(v, bool) or not isinstance(v, int | float | None) for v in values):
        raise BadInput(
            f"{path} does not hold the scores of a run; delete it and go on with: fedmix resume "
            f"{path.parent}"
        )
    last, best, last_ten = (math.inf if v is None else float(v) for v in values[:3])
    return Scores(last, best, last_ten, math.nan if values[3] is None else float(values[3]))


def _runs(folder: Path, levels: int) -> Iterator[Path | Packed]:
    if folder.is_file():
        yield from packed_in(folder)
    elif (folder / "experiment.toml").is_file() and (folder / "metrics.jsonl").is_file():
        yield folder
    elif levels:
        try:
            below = sorted(
                path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
            )
        except OSError as error:
            raise BadInput(
                f"{folder} cannot be read ({error.strerror}); give a folder that 'fedmix run' made"
            ) from error
        for path in below:
            yield from _runs(path, levels - 1)
        yield from packed_in(folder)


def _memory(parts: Mapping[str, Any], path: Path) -> float | None:
    if "memory" not in parts:
        return None
    with taken_from(path):
        return float(parts["memory"]["bytes"])


def _clients(parts: Mapping[str, Any], path: Path) -> Clients | None:
    said = parts.get("clients")
    if said is None:
        return None
    sizes, classes = _naturals(said.get("sizes"), path, "sizes", 1), said.get("classes")
    scores = _scores(parts.get("client_scores"), path, len(sizes))
    if not classes:
        return Clients(sizes, None, scores)
    counts = _naturals(said.get("counts"), path, "counts", 2)
    if counts.shape != (len(sizes), classes):
        raise BadInput(
            f"{path}: counts are not one row per client and one number per class; restore it or "
            "leave this run out"
        )
    return Clients(sizes, counts, scores)


def _scores(value: object, path: Path, clients: int) -> Array | None:
    if value is None:
        return None
    try:
        scores = np.array(value, np.float64)  # None becomes NaN
    except (ValueError, TypeError, OverflowError):
        scores = np.array(0.0)
    if scores.shape != (clients,):
        raise BadInput(
            f"{path}: scores are not one number per client; restore it or leave this run out"
        )
    return scores


def _naturals(value: object, path: Path, name: str, dimensions: int) -> Array:
    try:
        array = np.array(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        array = np.array(np.nan)
    if array.ndim != dimensions or not array.size or not (np.isfinite(array) & (array >= 0)).all():
        raise BadInput(
            f"{path}: {name} are not numbers of samples; restore it or leave this run out"
        )
    return array


def _gallery(path: Path) -> Gallery | None:
    if not path.exists():
        return None
    from safetensors import SafetensorError
    from safetensors.numpy import load as tensors

    content = read(path)
    try:
        said = tensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} is damaged ({printable(error)}); delete it to report this run without pictures"
        ) from None
    pictures = [said.get(name) for name in ("means", "samples")]
    for array in pictures:
        if (
            array is None
            or array.ndim != 4
            or array.shape[1] not in (1, 3)
            or not array.size
            or array.dtype.kind != "f"
        ):
            raise BadInput(
                f"{path} does not hold pictures with 1 or 3 channels; delete it to report this run "
                "without them"
            )
    means, samples = (
        np.clip(np.nan_to_num(np.asarray(array, np.float64)), 0, 1) for array in pictures
    )
    return Gallery(means, samples)
