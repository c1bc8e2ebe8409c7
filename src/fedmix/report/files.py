"""Files of unknown origin read within limits; files written whole or not at all."""

import json
import tomllib
import uuid
from pathlib import Path
from typing import Any

from fedmix.errors import BadInput

LARGEST = 256 << 20  # bytes of one file


def read(path: Path) -> bytes:
    """The bytes of a plain file of bearable size."""
    if not path.is_file():  # a pipe would wait for ever
        raise BadInput(f"{path} is missing or not a plain file; give a folder that 'fedmix run' made")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if len(content) > LARGEST:
        raise BadInput(f"{path} is larger than {LARGEST >> 20} MiB; a run folder holds no such file, leave this run out")
    return content


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


def write_whole(path: Path, content: bytes) -> None:
    """Write beside, then rename."""
    partial = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with partial.open("xb") as file:
            file.write(content)
        partial.replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}); choose another place for it") from error
    finally:
        partial.unlink(missing_ok=True)


def printable(value: object) -> str:
    """A value as text that cannot steer a terminal: control characters become a replacement sign."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else printable(error)
