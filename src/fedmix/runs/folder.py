"""The folder of a run: its files, its lock, and clear errors if it cannot be written.

    experiment.toml         the spec                  metrics.jsonl           one object per round
    environment.json        where and how it ran      checkpoint.safetensors  state to continue from
    clients.json            who holds how much        summary.json            written last
    gallery.safetensors     some exchanged means, for image data
    means-V.safetensors     version V of the released means; the checkpoint names one version
    failure.json            how a run that diverged or collapsed ended
    tracking.json           what W&B and MLflow call it, if they are told of it

A file is written under another name and renamed, so it is complete or absent. Metrics are appended,
and cut back to the checkpoint when a run continues. If clients have test samples of their own,
clients.json gets their scores when the run is done. No file is ever unpickled.
"""

import errno
import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput, FedmixError
from fedmix.core.files import read_within, refuse_link

LARGEST = 256 << 20  # bytes of a file that is read whole
REFUSED = errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENOENT


def read(path: Path) -> bytes:
    """Return the content of a file in a run folder.

    Raises:
        BadInput: The file is a link, too large or unreadable.
    """
    advice = f"restore it, or delete {path.parent} to start anew"
    return read_within(path, LARGEST, advice, links=False)


def run_folders(folder: Path, levels: int = 2) -> Iterator[Path]:
    """Yield the run folders in a folder, or in those below it; or itself, if it is one.

    Raises:
        BadInput: A folder cannot be read.
    """
    if (folder / "experiment.toml").is_file():
        yield folder
    elif levels:
        try:
            below = sorted(path for path in folder.iterdir() if path.is_dir())
        except OSError as error:
            raise BadInput(
                f"{folder} cannot be read ({error.strerror}); give a folder that 'fedmix run' made"
            ) from error
        for path in below:
            if not path.name.startswith("."):
                yield from run_folders(path, levels - 1)


def as_json(value: Mapping[str, Any], indent: int | None = 1) -> bytes:
    """Return a value in the format of the run folder's JSON files."""
    return (json.dumps(value, indent=indent) + "\n").encode()


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Lock a folder against other processes; remove it afterwards if nothing was written to it.

    The lock ends with its process; a lock file that is left behind locks nobody out.

    Raises:
        BadInput: Another process holds the lock; this is known at once.
    """
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
            with suppress(OSError):  # another process uses the folder, or it was deleted
                if list(folder.iterdir()) == [path]:
                    path.unlink()
                    folder.rmdir()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make a folder, and remove the folders that were made if they stay empty.

    Raises:
        FedmixError: The disk is full.
        BadInput: The folder cannot be written.
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
        if error.errno in REFUSED:
            raise BadInput(
                f"{folder} cannot be written ({error.strerror}); choose another folder"
            ) from error
        raise
    finally:
        with suppress(OSError):  # they are not empty
            for path in filter(Path.exists, made):
                path.rmdir()
