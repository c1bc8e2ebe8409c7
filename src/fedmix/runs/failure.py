"""failure.json: how a run that diverged or collapsed ended.

Such a run ends the same way again, so the failure is its result. Delete the file to make `fedmix
reproduce` run it again; a run that finishes removes it.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedmix.core.errors import BadInput, Collapsed, Diverged
from fedmix.core.files import parse_json, printable, write_whole
from fedmix.runs.folder import as_json, read

FILE = "failure.json"


class Failure(NamedTuple):
    """What ended a run, in which round, and why."""

    kind: Literal["diverged", "collapsed"]
    round: int
    reason: str


def record_failure(folder: Path, error: Diverged | Collapsed) -> None:
    """Write to a run folder how the run failed."""
    write_whole(folder / FILE, as_json({"kind": type(error).__name__.lower(), **vars(error)}))


def forget_failure(folder: Path) -> None:
    """Remove the record of an earlier failure, if there is one."""
    (folder / FILE).unlink(missing_ok=True)


def read_failure(folder: Path) -> Failure | None:
    """Return the failure in a run folder, or None; raise BadInput if the file is damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    content = read(path)
    try:
        said = parse_json(content)
    except ValueError:
        said = None
    return failure_of(said, path)


def failure_of(said: Any, path: Path) -> Failure:
    """Return the failure that a file or a store tells of; raise BadInput if it tells of none."""
    try:
        kind: Literal["diverged", "collapsed"] = (
            "collapsed" if said.get("kind") == "collapsed" else "diverged"
        )
        return Failure(kind, int(said["round"]), printable(said["reason"]))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise BadInput(
            f"{path} is damaged; delete it and go on with: fedmix resume {path.parent}"
        ) from None
