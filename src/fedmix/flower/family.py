"""The processes that a process started: found, asked to end, and looked at."""

import contextlib
import os
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found


def command_line(pid: int) -> bytes:
    """Return the command of a process; nothing if it has ended."""
    with contextlib.suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def send(pid: int, number: int) -> None:
    """Send a signal to a process, and to the process group that it leads or led."""
    for to in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            to(pid, number)


def alive(pid: int) -> bool:
    """Whether a process, or one of the group that it leads or led, exists and is not a zombie."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, 0)
        return True
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    return False
