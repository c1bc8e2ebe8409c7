"""Atomic writes, and reads of untrusted files within limits of size and depth."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput

DEEPEST = 32  # levels of nesting
PICTURES = (".png", ".svg")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically.

    The content goes to a temporary file in the same folder, is synced to disk and renamed. If the
    process dies at any moment, `path` holds the old content or the new.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as file:  # "x": never write through a link that is already there
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_within(path: Path, largest: int, advice: str, *, links: bool = True) -> bytes:
    """Read a plain file of at most `largest` bytes.

    Args:
        path: The file.
        largest: The largest size allowed, in bytes.
        advice: The end of the error message: what the user can do.
        links: Whether the file may be a symbolic link. A folder from elsewhere must not lead to
            files outside it, so refuse links there.

    Raises:
        BadInput: The file cannot be read, is not a plain file, is too large or is a link.
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe would block
            raise BadInput(f"{path} is not a plain file; {advice}")
        if not links and path.is_symlink():
            raise BadInput(f"{path} is a link to a file elsewhere; {advice}")
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); {advice}") from None
    if len(content) > largest:
        raise BadInput(f"{path} is larger than {_size(largest)}; {advice}")
    return content


def _size(count: int) -> str:
    """Format a number of bytes in the largest unit that fits."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if count >> shift:
            return f"{count >> shift} {unit}"
    return f"{count} bytes"


def read_toml(path: Path, largest: int, advice: str) -> dict[str, Any]:
    """Read a TOML file that a user wrote; raise BadInput if it cannot be read or parsed."""
    text = read_within(path, largest, advice)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise BadInput(f"{path} is not valid TOML: {printable(error)}") from None


def parse_toml(text: bytes) -> dict[str, Any]:
    """Parse a TOML table within the limits of `_plain`; raise ValueError if that fails."""
    try:
        return dict(_plain(tomllib.loads(text.decode())))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json(text: bytes) -> Any:
    """Parse a JSON value within the limits of `_plain`; raise ValueError if that fails."""
    try:
        return _plain(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _plain(value: Any) -> Any:
    """Return the value, or raise ValueError for deep nesting and integers of more than 64 bits."""
    level = [value]
    for _ in range(DEEPEST):
        if any(type(v) is int and v.bit_length() > 64 for v in level):
            raise ValueError("an integer has more than 64 bits")
        level = [
            inner
            for v in level
            if isinstance(v, dict | list)
            for inner in (v.values() if isinstance(v, dict) else v)
        ]
        if not level:
            return value
    raise ValueError("nested too deeply")


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested tables, with its dotted path."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{printable(key)}.")
        else:
            yield f"{prefix}{printable(key)}", value


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every value of nested tables as text, with its dotted path."""
    for path, value in leaves(values):
        yield path, printable(value)


def printable(value: object) -> str:
    """Turn a value into text that is safe to print: control characters are replaced by U+FFFD."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def check_picture(path: Path) -> None:
    """Raise BadInput for a file ending that cannot be drawn, before anything is run or measured."""
    if path.suffix.lower() not in PICTURES:
        raise BadInput(
            f"{path}: a picture can be written as {' or '.join(PICTURES)}; choose one of these "
            "endings"
        )


def refuse_link(path: Path) -> None:
    """Raise BadInput if the file to be written is a symbolic link, which leads to another file."""
    if path.is_symlink():
        raise BadInput(f"{path} is a link to a file elsewhere; delete it")
