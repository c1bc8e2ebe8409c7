"""Files written whole or not at all; files of unknown origin read within limits."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedmix.core.errors import BadInput

DEEPEST = 32  # lists in lists
PICTURES = (".png", ".svg")


def write_whole(path: Path, content: bytes) -> None:
    """Write beside, see it onto the disk, then rename: whenever the process dies, the file is the
    old one or the new one.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        with partial.open(
            "xb"
        ) as file:  # a new file: a link that somebody put there is not written through
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_within(path: Path, largest: int, advice: str, *, links: bool = True) -> bytes:
    """The content of a plain file of at most `largest` bytes; `advice` ends the sentence that
    refuses any other.

    Without `links`, a link is refused too: a folder from elsewhere must not name files outside it.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
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
    """Bytes in the largest unit of which there is one."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if count >> shift:
            return f"{count >> shift} {unit}"
    return f"{count} bytes"


def read_toml(path: Path, largest: int, advice: str) -> dict[str, Any]:
    """The table in a TOML file that a user wrote."""
    text = read_within(path, largest, advice)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise BadInput(f"{path} is not valid TOML: {printable(error)}") from None


def parse_toml(text: bytes) -> dict[str, Any]:
    """A TOML table of plain size; ValueError says why it is none."""
    try:
        return dict(_plain(tomllib.loads(text.decode())))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json(text: bytes) -> Any:
    """A JSON value of plain size; ValueError says why it is none."""
    try:
        return _plain(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _plain(value: Any) -> Any:
    """Refuse what no file needs and much code trips over: values nested deeply, and integers of
    more than 64 bits.
    """
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


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every value in nested tables by its dotted path, as text."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{printable(key)}.")
        else:
            yield f"{prefix}{printable(key)}", printable(value)


def printable(value: object) -> str:
    """Turn a value into text that is safe to print: control characters are replaced by U+FFFD."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def check_picture(path: Path) -> None:
    """Refuse endings that cannot be drawn, before anything is run or measured."""
    if path.suffix.lower() not in PICTURES:
        raise BadInput(
            f"{path}: a picture can be written as {' or '.join(PICTURES)}; choose one of these "
            "endings"
        )


def refuse_link(path: Path) -> None:
    """Refuse a link in the place of a file that is to be written: it leads to another."""
    if path.is_symlink():
        raise BadInput(f"{path} is a link to a file elsewhere; delete it")
