"""The folder of a run: which files it holds, who may write to it, and what is said if that fails.

    experiment.toml         the spec
    environment.json        where and how it ran
    clients.json            who holds how much
    metrics.jsonl           one object per round
    checkpoint.safetensors  what the next round depends on
    means-V.safetensors     version V of the released means; the checkpoint names one version
    gallery.safetensors     some exchanged means, for image data
    failure.json            how a run ended that diverged or collapsed
    summary.json            written last: the run is done

Files are written beside and renamed, so each is whole or absent. Metrics are appended, and cut back
to the checkpoint when a run goes on. Where clients have test samples of their own, clients.json
gets their scores when the run is done. No file is ever unpickled.
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
    """The content of a file in a run folder; BadInput if it is a link, too large or unreadable."""
    advice = f"restore it, or delete {path.parent} to start anew"
    return read_within(path, LARGEST, advice, links=False)


def as_json(value: Mapping[str, Any], indent: int | None = 1) -> bytes:
    """A value as the run folder's JSON files hold it."""
    return (json.dumps(value, indent=indent) + "\n").encode()


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Keep other processes out of a folder; remove it afterwards if nothing was written to it.

    Raises BadInput at once if another process holds the lock. The lock ends with its process; the
    file that it leaves keeps nobody out.
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
            with suppress(OSError):  # another process came, or the folder was deleted
                if list(folder.iterdir()) == [path]:
                    path.unlink()
                    folder.rmdir()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make the folder, and remove what was made if it stays empty.

    An OSError inside becomes a sentence: FedmixError if the disk is full, BadInput if the folder
    cannot be written.
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
        with suppress(OSError):  # they hold something
            for path in filter(Path.exists, made):
                path.rmdir()
