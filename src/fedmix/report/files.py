"""The files that a report reads, which are not trusted, and those that it writes."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json, parse_toml, printable, read_within, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 256 << 20  # bytes of one file


def read(path: Path) -> bytes:
    """Return the content of a file in a run folder.

    Raises:
        BadInput: The file is a link, too large or unreadable.
    """
    return read_within(
        path, LARGEST, "give a folder that 'fedmix run' made, or leave this run out", links=False
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise BadInput if it holds none."""
    content = read(path)
    try:
        value = parse_json(content)
    except ValueError as error:
        raise BadInput(
            f"{path} is not valid JSON ({printable(error)}); restore it or leave this run out"
        ) from None
    if not isinstance(value, dict):
        raise BadInput(f"{path} does not hold a JSON object; restore it or leave this run out")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the TOML table in a file; raise BadInput if it is not valid."""
    content = read(path)
    try:
        return parse_toml(content)
    except ValueError as error:
        raise BadInput(
            f"{path} is not valid TOML ({printable(error)}); restore it or leave this run out"
        ) from None


@contextmanager
def taken_from(path: Path) -> Iterator[None]:
    """Turn errors on values that were read from a file into BadInput."""
    try:
        yield
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadInput(
            f"{path} does not hold what it should; delete it, and it will be made again"
        ) from None


def write_figure(path: Path, figure: "Figure") -> None:
    """Write a figure in the format of the path's suffix; the same drawing gives the same file.

    Raises:
        BadInput: The path cannot be written.
    """
    import matplotlib as mpl

    kind, picture = path.suffix.lower().removeprefix("."), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fedmix"}):
        figure.savefig(
            picture, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
        )
    write(path, picture.getvalue())


def write(path: Path, content: bytes) -> None:
    """Write a file, complete or not at all; raise BadInput if the path cannot be written."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written ({error.strerror}); choose another place for it"
        ) from error
