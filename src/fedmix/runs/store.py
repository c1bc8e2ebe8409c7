"""A store: many runs in a few files, to publish and to read like run folders.

A store is a folder with a file for each data set, `cifar10.jsonl`, and more, `cifar10-2.jsonl`,
where one would be too large. After a line that says what the file is, each line is a run:

    run          name of its folder          metrics      a column for each of METRICS
    experiment   content of experiment.toml  environment  content of environment.json
    summary      if the run is done          failure      if it diverged or collapsed
    clients      content of clients.json     memory       if it was measured

Metrics are kept of tested rounds and the last one, losses with five digits. A column holds "" where
a round has no such value and null where it is not finite. `clients` is the name of an earlier run
of the file with the same clients, if there is one; `client_scores` are the run's own. Checkpoints,
pictures of means and the parts of the traffic are left out: a packed run can be reported, and not
be continued.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json, parse_toml, printable, read_within, write_whole
from fedmix.experiment.spec import Experiment
from fedmix.experiment.values import section_of
from fedmix.runs.folder import read, writing
from fedmix.runs.metrics import read_lines

HEADER = {"fedmix": "runs", "version": 1}
METRICS = (
    "round", "accuracy", "mse", "loss", "head_accuracy", "local_loss", "seconds", "bytes_up",
    "bytes_down",
)  # fmt: skip
SCORES = ("accuracy", "mse", "head_accuracy")
DIGITS = {"loss": 5, "local_loss": 5}  # significant ones that are kept; scores are kept exactly
PARTS = ("environment", "summary", "failure", "memory")  # files NAME.json that are kept as they are
LARGEST = 64 << 20  # bytes of a file that is read
FULL = 1_000_000  # bytes of a file that is written, unless a single run has more


@dataclass(frozen=True, eq=False)
class Packed:
    """A run of a store.

    Attributes:
        path: The file and the name of the run, for messages.
        content: What a line of the file holds, with the clients filled in.
    """

    path: Path
    content: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the folder that was packed."""
        return self.path.name

    @cached_property
    def id(self) -> str:
        """Id of its experiment, which old runs do not have in their names."""
        return Experiment.of(self.content["experiment"], str(self.path)).id


def packed_in(folder: Path) -> list[Packed]:
    """Return the runs of the store in a folder, or of one of its files; empty if it is no store.

    Raises:
        BadInput: A file is damaged.
    """
    files = [folder] if folder.suffix == ".jsonl" else sorted(folder.glob("*.jsonl"))
    found: dict[str, Packed] = {}
    for path in files:
        if _is_store(path):
            said = path.stat()
            for run in _runs_of(path, (said.st_mtime_ns, said.st_size)):
                found.setdefault(run.name, run)
    return list(found.values())


def packed_run(experiment: Experiment, out: Path) -> Packed | None:
    """Return the run of an experiment in the store `out`; None if it is not there.

    A run that was made when ids were a hash of all settings is found by its settings.
    """
    what = experiment.id.rpartition("-")[0]
    alike = [run for run in packed_in(out) if run.name.rpartition("-")[0] == what]
    named = (run for run in alike if run.name == experiment.id)
    return next(named, None) or next((run for run in alike if run.id == experiment.id), None)


def pack(runs: Sequence[Path | Packed], out: Path) -> tuple[list[Path], list[Path]]:
    """Add run folders, and runs of other stores, to the store `out`.

    A run that is there already is replaced.

    Returns:
        The files of the store, and the folders that were left out because their runs are not done.

    Raises:
        BadInput: A run is damaged, none is done, a file of its name is no store, or the store
            cannot be written.
    """
    found = {
        run: dict(run.content) if isinstance(run, Packed) else _content(run)
        for run in (*packed_in(out), *runs)
    }
    contents = {content["run"]: content for content in found.values() if content}
    if not contents:
        raise BadInput("none of these runs is done; go on with 'fedmix resume FOLDER'")
    files = {
        out / f"{data}{f'-{number}' if number > 1 else ''}.jsonl": "".join(lines).encode()
        for data, some in groupby(
            sorted(contents.values(), key=lambda run: (_data(run), run["run"])), key=_data
        )
        for number, lines in enumerate(_files(list(some)), 1)
    }
    for path in files:
        if path.exists() and not _is_store(path):
            raise BadInput(f"{path} is there and holds no packed runs; choose another folder")
    with writing(out):
        for path, text in files.items():
            write_whole(path, text)
        for path in out.glob("*.jsonl"):
            if path not in files and _is_store(path):
                path.unlink()
    left_out = [run for run, content in found.items() if not content and isinstance(run, Path)]
    return list(files), left_out


def _data(content: Mapping[str, Any]) -> str:
    """Return the name of the data set, which names a file."""
    name = str(section_of(content["experiment"], "data").get("name"))
    return name if re.fullmatch(r"[\w-]+", name) else "runs"


def _files(runs: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the lines of each file for these runs, which share clients within a file."""
    header = json.dumps(HEADER) + "\n"
    lines, owners = [header], dict[str, str]()
    for run in runs:
        line = _line(run, owners)
        if len(lines) > 1 and sum(map(len, lines)) + len(line) > FULL:
            yield lines
            lines, owners = [header], {}
            line = _line(run, owners)
        lines.append(line)
    yield lines


def _line(run: Mapping[str, Any], owners: dict[str, str]) -> str:
    """Return a run's line; `owners` are the runs of the file by the clients that they tell of."""
    content = dict(run)
    if (clients := content.get("clients")) is not None:
        owner = owners.setdefault(json.dumps(clients), content["run"])
        content["clients"] = clients if owner == content["run"] else owner
    return json.dumps(content, ensure_ascii=False, separators=(", ", ":")) + "\n"


def _content(folder: Path) -> dict[str, Any]:
    """Return the content of a run folder, as the store holds it; empty if the run is not done."""
    try:
        content = _parts(folder)
        rounds, done = content["experiment"].get("rounds"), content.get("summary", {})
        if "failure" not in content and done.get("rounds") != rounds:
            return {}
        lines = read_lines(folder / "metrics.jsonl")
        if not all(isinstance(line, dict) and "round" in line for line in lines):
            raise ValueError("a line of metrics.jsonl is of no round")
        kept = [line for line in lines if line is lines[-1] or any(name in line for name in SCORES)]
        content["metrics"] = {
            name: [_rounded(name, line.get(name, "")) for line in kept]
            for name in METRICS
            if any(name in line for line in kept)
        }
    except (ValueError, AttributeError, TypeError, OSError) as error:
        raise BadInput(
            f"{folder} is damaged ({printable(error)}); restore it or leave it out"
        ) from None
    return content


def _parts(folder: Path) -> dict[str, Any]:
    """Return the content of a run folder without its metrics."""
    content: dict[str, Any] = {
        "run": folder.name,
        "experiment": parse_toml(read(folder / "experiment.toml")),
    }
    for part in (*PARTS, "clients"):
        if (path := folder / f"{part}.json").is_file():
            content[part] = parse_json(read(path))
    if "clients" in content:
        scores = content["clients"].pop("scores", None)
        content |= {} if scores is None else {"client_scores": scores}
    return content


def _rounded(name: str, value: Any) -> Any:
    """Return a value of a metric with as many digits as are kept."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return float(f"{value:.{DIGITS[name]}g}") if name in DIGITS else value


def _is_store(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline(100).strip() == json.dumps(HEADER).encode()


@lru_cache(maxsize=64)
def _runs_of(path: Path, _version: tuple[int, int]) -> tuple[Packed, ...]:
    """Return the runs in a file; time of change and size tell its versions apart in the cache."""
    advice = "restore it, or leave it out"
    lines = read_within(path, LARGEST, advice, links=False).split(b"\n")
    runs: dict[str, Packed] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            content = parse_json(line)
            name = content["run"]
            if isinstance(of := content.get("clients"), str):
                content["clients"] = runs[of].content["clients"]
            done = "failure" in content or "summary" in content
            parts = [
                content["experiment"],
                *(content.get(part, {}) for part in (*PARTS, "clients")),
            ]
            if not (isinstance(name, str) and done and all(isinstance(p, dict) for p in parts)):
                raise TypeError
            runs[name] = Packed(path / printable(name), content)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(f"{path}, line {number}, does not hold a run; {advice}") from None
    return tuple(runs.values())
