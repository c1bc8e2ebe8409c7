"""What the commands do."""

import itertools
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput, FedmixError, Interrupted
from fedmix.core.files import PICTURES, check_picture, parse_toml
from fedmix.core.signals import heard
from fedmix.experiment.presets import PRESETS, experiment, sections
from fedmix.experiment.spec import (
    DATA,
    Experiment,
    algorithm_of,
    changed,
    load_data,
    read_values,
    table,
    takes,
)
from fedmix.runs.progress import Progress, console, paper, tell_written
from fedmix.runs.run import Listener, Run


def experiments(
    what: str,
    algorithms: Sequence[str | None],
    rounds: int | None,
    seed: int | None,
    seeds: int,
    settings: Sequence[str],
    engine: str | None = None,
    device: str | None = None,
    processes: int | None = None,
) -> list[Experiment]:
    """Every experiment that a command line asks for: algorithms x settings x seeds."""
    if not algorithms:
        raise BadInput("--algorithms names none; give some, such as fedavg,fedmix")
    if seeds < 1:
        raise BadInput(f"--seeds {seeds}: at least one is needed")
    keys = [setting.partition("=")[0] for setting in settings]
    if twice := [k for k in keys if keys.count(k) > 1]:
        raise BadInput(f"--set {twice[0]} is given twice; for a sweep, split its values by commas")
    if "seed" in keys and seeds > 1:
        raise BadInput("--set seed and --seeds contradict each other; use --seed and --seeds")
    fixed = {
        "seed": seed,
        "rounds": rounds,
        "engine.name": engine,
        "engine.device": device,
        "engine.processes": processes,
    }
    chosen = {k: v for k, v in fixed.items() if v is not None}
    where = what if what.endswith(".toml") else f"preset {what}"
    origin = dict.fromkeys(chosen, "command line") | dict.fromkeys(keys, "--set")
    grid = [parsed(s) for s in settings]
    bases = [changed(_base(what, algorithm), chosen) for algorithm in algorithms]
    if "objective.name" in keys:  # another objective takes other settings
        names = grid.pop(keys.index("objective.name"))
        _refuse_twice([str(name) for _, name in names], [dict([name]) for name in names])
        bases = [changed(base, dict([name])) for base in bases for name in names]
    unknown = [path for (path, _), *_ in grid if not any(takes(base, path) for base in bases)]
    found: dict[str, Experiment] = {}
    for base in (
        bases[-1:] if unknown else bases
    ):  # of which validation says what is wrong with them
        taken = (values for values in grid if values[0][0] in unknown or takes(base, values[0][0]))
        points = [dict(point) for point in itertools.product(*taken)]
        start = base.get("seed", 0)
        numbers = [{"seed": start + i} for i in range(seeds)] if type(start) is int else [{}]
        swept = [
            [Experiment.of(changed(base, number | p), where, origin) for number in numbers]
            for p in points
        ]
        _refuse_twice([few[0].id for few in swept], points)
        found |= {one.id: one for few in swept for one in few}
    return list(found.values())


def only_experiment(
    what: str, algorithm: str | None, rounds: int | None, seed: int | None, settings: Sequence[str]
) -> Experiment:
    """The experiment that a command line asks for, where it can be one only."""
    for setting in settings:
        (path, _), *more = parsed(setting)
        if more:
            raise BadInput(
                f"--set {path} has several values, but this command takes one experiment; give one"
            )
    [chosen] = experiments(what, [algorithm], rounds, seed, 1, settings)
    return chosen


def _refuse_twice(ids: Sequence[str], points: Sequence[dict[str, Any]]) -> None:
    """Refuse a sweep of which two points are the same run, such as one of `engine.processes`."""
    first: dict[str, dict[str, Any]] = {}
    for name, point in zip(ids, points, strict=True):
        if name in first:
            one, other = (
                " ".join(f"{path}={value}" for path, value in p.items())
                for p in (first[name], point)
            )
            raise BadInput(
                f"--set: {one} and {other} are the same run ({name}); leave one of them out"
            )
        first[name] = point


def _base(what: str, algorithm: str | None) -> dict[str, Any]:
    """The values of a preset, or of a file, which --set may yet make valid."""
    if not what.endswith(".toml"):
        return experiment(what, algorithm or "fedmix").values()
    values = read_values(Path(what))
    if algorithm is None or algorithm == algorithm_of(values):
        return values
    name = str(table(values, "data").get("name"))
    if name not in PRESETS:
        raise BadInput(
            f"another algorithm needs a preset's λ and μ, and {name} has none; set [objective] in "
            f"{what}, and use run"
        )
    new = sections(algorithm, PRESETS[name])
    if (
        "exchange" in new
    ):  # what the file says of the exchange holds for every algorithm that has one
        new["exchange"] = table(values, "exchange") | {"source": "pool"} | new["exchange"]
    return {k: v for k, v in values.items() if k != "exchange"} | new


def parsed(setting: str) -> list[tuple[str, Any]]:
    """`key=a,b` as [(key, a), (key, b)], each value read as TOML where it is TOML, `none` as None,
    else as a string.
    """
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise BadInput(f"--set {setting!r} is not KEY=VALUE, such as objective.lam=0.1")
    parts = [text] if text.startswith("[") else text.split(",")
    return [(key, _value(part.strip())) for part in parts]


def _value(text: str) -> Any:
    if text in ("none", "None"):  # as one types it, and as outputs say it
        return None
    try:
        return parse_toml(f"x = {text}".encode())["x"]
    except ValueError:
        return text


@contextmanager
def ctrl_c() -> Iterator[Any]:
    """Once: finish the round. Twice: stop at once. Only a process's first thread hears it."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False

    def note() -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console().print("finishing this round; Ctrl-C again stops at once")

    with heard([signal.SIGINT], note):
        yield lambda: asked


def runs_in(out: Path, experiments: Sequence[Experiment]) -> list[Run]:
    """A run of each experiment, in a folder of its own; none if one of them is known to fail."""
    for one in experiments:
        one.check_clients()
    return [Run(e, out / e.id) for e in experiments]


def reopened(folders: Sequence[Path], rounds: int | None, processes: int | None) -> list[Run]:
    """The runs in some folders, each once, perhaps with more rounds or other processes."""
    given = {"rounds": rounds, "engine.processes": processes}
    settings = {path: value for path, value in given.items() if value is not None}
    runs = [
        Run.open(folder)
        for folder in {os.path.realpath(folder): folder for folder in folders}.values()
    ]
    return [Run(run.experiment.with_settings(settings), run.folder) for run in runs]


def run_each(
    runs: Sequence[Run], root: Path | None, *, quiet: bool, tensorboard: bool = False, jobs: int = 1
) -> Iterator[tuple[Run, dict[str, Any] | Exception]]:
    """Run one after the other, or several at once; each with its summary, or with what went wrong,
    after which others go on.
    """
    if jobs < 1:
        raise BadInput(f"--jobs {jobs}: at least one is needed")
    command = shlex.join(["fedmix", *sys.argv[1:]])
    titles = [
        f"{e.data.name} {e.algorithm} seed {e.seed}" for e in (run.experiment for run in runs)
    ]
    widest = max(map(len, titles), default=0)
    here = [(run, titles[i].ljust(widest), f"{i + 1}/{len(runs)}") for i, run in enumerate(runs)]
    missing = [one for one in here if _missing(one[0])] if jobs > 1 else []
    apart = missing if len(missing) > 1 else []
    if apart:
        from fedmix.runs.jobs import at_once, refused

        why = refused([run.experiment for run, _, _ in apart], root)
        yield from (
            (run, why[run.experiment.id]) for run, _, _ in apart if run.experiment.id in why
        )
        here = [one for one in here if one not in apart]
        apart = [one for one in apart if one[0].experiment.id not in why]
    with ctrl_c() as stopped:
        for run, title, number in here:
            if stopped():
                raise Interrupted(
                    f"stopped before {run.folder.name}; the same command goes on where it was"
                )
            outcome: dict[str, Any] | Exception
            with Progress(title, run.experiment, number, quiet=quiet) as progress:
                try:
                    with listening(run, progress.update, tensorboard) as listen:
                        outcome = run.execute(listen, command=command, root=root, stopped=stopped)
                except Interrupted:
                    raise
                except Exception as error:  # whatever it is, the other runs go on
                    outcome = error
            yield run, outcome
        if apart:
            how = {
                "command": command,
                "quiet": quiet,
                "tensorboard": tensorboard,
                "stopped": stopped,
            }
            yield from at_once(apart, min(jobs, len(apart)), root, **how)


def _missing(run: Run) -> bool:
    """Whether there is anything to run; a folder that cannot be read needs no process to say so."""
    try:
        return run.finished() is None
    except BadInput:
        return False


def run_all(
    runs: Sequence[Run],
    root: Path | None,
    *,
    quiet: bool,
    as_json: bool,
    tensorboard: bool,
    jobs: int = 1,
) -> list[Path]:
    """Run each and show what came of it; a failure is told at the end and loses none of the others."""
    ended = {
        run.folder: o
        for run, o in run_each(
            runs, root, quiet=quiet or as_json, tensorboard=tensorboard, jobs=jobs
        )
    }
    failures, summaries = [], {}
    for run in runs:
        outcome = ended[run.folder]
        if not isinstance(outcome, Exception):
            summaries[str(run.folder)] = outcome
        elif len(runs) == 1:
            raise outcome
        else:
            failures.append((run, outcome))
    show_results(summaries, quiet=quiet, as_json=as_json)
    tell_failures(failures, len(runs))
    return [run.folder for run in runs]


def show_results(summaries: Mapping[str, Mapping[str, Any]], *, quiet: bool, as_json: bool) -> None:
    """Finished runs, by folder, as JSON or as a table; on standard error, of which something is to
    be known.
    """
    if as_json:
        print(json.dumps(summaries, indent=1))
    elif summaries:
        from fedmix.report import load_runs, results_of

        paper().print(results_of(load_runs([Path(f) for f in summaries])).table().rich())
        if not quiet:
            console(sys.stdout).print("\n".join(summaries), soft_wrap=True)
        for folder, summary in summaries.items():
            if "warning" in summary:
                console().print(f"{Path(folder).name}: {summary['warning']}", soft_wrap=True)


def tell_failures(failures: Sequence[tuple[Run, Exception]], runs: int) -> None:
    """Raise what went wrong in some of the runs, if anything did."""
    refused = len(failures) == runs and all(isinstance(error, BadInput) for _, error in failures)
    if refused and len({str(error) for _, error in failures}) == 1:
        raise failures[0][1]
    if failures:
        told = "; ".join(
            f"{run.folder.name}: {error or type(error).__name__}" for run, error in failures
        )
        raise (BadInput if refused else FedmixError)(
            f"{len(failures)} of {runs} runs failed: {told}"
        )


@contextmanager
def listening(run: Run, listen: Listener, tensorboard: bool) -> Iterator[Listener]:
    """`listen`, with TensorBoard beside it where that is asked for."""
    if not tensorboard:
        yield listen
        return
    from fedmix.runs.tensorboard import logging

    with logging(run.folder) as log:

        def both(line: dict[str, Any]) -> None:
            listen(line)
            log(line)

        yield both


def check_outputs(
    *paths: Path | None,
    pictures: Sequence[Path | None] = (),
    png: Path | None = None,
    svg: Path | None = None,
) -> None:
    """Refuse files that could not be written, or not as what they are called, before hours are
    spent on what goes into them.

    The ending of one of the `pictures` says what it is; that of `png` and of `svg` must not say
    otherwise.
    """
    for picture in filter(None, (*pictures, png, svg)):
        check_picture(picture)
    for path, ending in ((png, ".png"), (svg, ".svg")):
        if path is not None and path.suffix.lower() != ending:
            raise BadInput(
                f"{path}: --{ending[1:]} writes a picture that ends in {ending}; choose this "
                "ending or the other option"
            )
    for path in filter(None, paths):
        if path.suffix.lower() in PICTURES:
            raise BadInput(
                f"{path}: what is written there is no picture; choose another ending than "
                f"{path.suffix}"
            )
    places = set()
    for path in filter(None, (*paths, *pictures, png, svg)):
        if path.is_dir():
            raise BadInput(f"{path} cannot be written: it is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise BadInput(
                f"{path} cannot be written: there is no folder {path.parent}; make it first"
            )
        place = path.parent.resolve() / path.name
        if place in places:
            raise BadInput(
                f"{path} is to be written twice; give each of the outputs a file of its own"
            )
        places.add(place)


def write_reports(
    folders: Sequence[Path], *, pictures: Sequence[Path | None], csv: Path | None, html: Path | None
) -> None:
    """Write what was asked for of these runs."""
    if not any((*pictures, csv, html)):
        return
    from fedmix import report
    from fedmix.report.files import write

    runs = report.load_runs(list(folders))
    for picture in filter(None, pictures):
        report.draw(runs, picture)
    if csv:
        write(csv, report.results_of(runs).numbers().csv().encode())
    if html:
        report.write_html(runs, html)
    tell_written(*pictures, csv, html)


ABOUT = {
    "digits": "1,797 8x8 images, 10 classes; comes with scikit-learn",
    "diabetes": "442 patients, a regression; comes with scikit-learn",
    "cifar10": "60,000 32x32 images, 10 classes; 130 MB from the hub",
    "cifar100": "60,000 32x32 images, 100 classes; 130 MB from the hub",
    "femnist": "handwritten characters by writer, 62 classes, from the hub",
    "shakespeare": "next-character prediction by speaking role, from the hub",
}


def list_data(as_json: bool) -> None:
    """The data sets."""
    if as_json:
        print(json.dumps(ABOUT, indent=1))
        return
    for name, about in ABOUT.items():
        console(sys.stdout).print(f"{name:12} {about}")


def fetch_data(names: Sequence[str], root: Path | None) -> None:
    """Load each data set once, which downloads and decodes it."""
    unknown = [n for n in names if n not in DATA]
    if unknown:
        raise BadInput(f"data {unknown[0]!r} is unknown; choose among {', '.join(DATA)}")
    for name in names:
        loaded = load_data(name, root)
        console(sys.stdout).print(
            f"{name}: {len(loaded.x)} training and {len(loaded.test_x)} test samples"
        )


def show_data(
    what: str, seed: int | None, settings: Sequence[str], root: Path | None, as_json: bool
) -> None:
    """Sizes and classes of the clients."""
    chosen = only_experiment(
        what, None if what.endswith(".toml") else "fedavg", None, seed, settings
    )
    federated = chosen.build_data(root)
    sizes = federated.clients.sizes
    by_class = federated.class_counts()
    counts = [] if by_class is None else by_class.tolist()
    if as_json:
        print(json.dumps({"clients": len(sizes), "sizes": sizes.tolist(), "counts": counts}))
        return
    out = console(sys.stdout)
    spread = f"{sizes.min()} to {sizes.max()} samples (mean {sizes.mean():.1f})"
    out.print(
        f"{federated.name}: {len(sizes)} clients, {spread}, {len(federated.test_x)} test samples"
    )
    for k, count in enumerate(counts[:20]):
        held = ", ".join(f"{c}: {n}" for c, n in enumerate(count) if n)
        out.print(
            f"  client {k:3}  {sizes[k]:5} samples   {held}", overflow="ellipsis", no_wrap=True
        )
    if len(counts) > 20:
        out.print(f"  ... and {len(counts) - 20} more")
