"""What a report reads and writes: files of run folders, which are not trusted, and files that were asked for."""

import json
import tomllib
from pathlib import Path
from typing import Any

from fedmix.errors import BadInput
from fedmix.files import read_within, write_whole

LARGEST = 256 << 20  # bytes of one file


def read(path: Path) -> bytes:
    """The bytes of a run folder's file."""
    return read_within(path, LARGEST, "give a folder that 'fedmix run' made, or leave this run out")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(read(path))
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not valid JSON ({_reason(error)}); restore it or leave this run out") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path} does not hold a JSON object; restore it or leave this run out")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML table."""
    try:
        return tomllib.loads(read(path).decode())
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not valid TOML ({_reason(error)}); restore it or leave this run out") from None


def write(path: Path, content: bytes) -> None:
    """A file that was asked for, whole or not at all."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}); choose another place for it") from error


def printable(value: object) -> str:
    """A value as text that cannot steer a terminal: control characters become a replacement sign."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else printable(error)
