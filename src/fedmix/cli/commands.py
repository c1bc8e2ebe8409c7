"""What the commands do."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.core.files import PICTURES, check_picture
from fedmix.experiment.spec import DATA, load_data
from fedmix.experiment.sweep import only_experiment
from fedmix.runs.execute import raise_failures, run_each
from fedmix.runs.progress import console, stdout_console, tell_written
from fedmix.runs.run import Run


def reopened(folders: Sequence[Path], rounds: int | None, processes: int | None) -> list[Run]:
    """The runs in some folders, each once, perhaps with more rounds or other processes."""
    given = {"rounds": rounds, "engine.processes": processes}
    settings = {path: value for path, value in given.items() if value is not None}
    runs = [
        Run.open(folder)
        for folder in {os.path.realpath(folder): folder for folder in folders}.values()
    ]
    return [Run(run.experiment.with_settings(settings), run.folder) for run in runs]


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
            runs,
            root,
            command=shlex.join(["fedmix", *sys.argv[1:]]),
            quiet=quiet or as_json,
            tensorboard=tensorboard,
            jobs=jobs,
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
    raise_failures(failures, len(runs))
    return [run.folder for run in runs]


def show_results(summaries: Mapping[str, Mapping[str, Any]], *, quiet: bool, as_json: bool) -> None:
    """Finished runs, by folder, as JSON or as a table; on standard error, of which something is to
    be known.
    """
    if as_json:
        print(json.dumps(summaries, indent=1))
    elif summaries:
        from fedmix.report import load_runs
        from fedmix.report import table as tabulate

        stdout_console().print(tabulate(load_runs([Path(f) for f in summaries])).rich())
        if not quiet:
            console(sys.stdout).print("\n".join(summaries), soft_wrap=True)
        for folder, summary in summaries.items():
            if "warning" in summary:
                console().print(f"{Path(folder).name}: {summary['warning']}", soft_wrap=True)


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
        write(csv, report.table(runs).csv().encode())
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
