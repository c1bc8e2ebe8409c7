"""Files written whole or not at all; files of unknown origin read within limits."""

import os
from pathlib import Path

from fedmix.errors import BadInput


def write_whole(path: Path, content: bytes) -> None:
    """Write beside, see it onto the disk, then rename: whenever the process dies, the file is the old one or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_within(path: Path, largest: int, advice: str) -> bytes:
    """The content of a plain file of at most `largest` bytes; `advice` ends the sentence that refuses any other."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise BadInput(f"{path} is not a plain file; {advice}")
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); {advice}") from None
    if len(content) > largest:
        raise BadInput(f"{path} is larger than {largest >> 20} MiB; {advice}")
    return content
