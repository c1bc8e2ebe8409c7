"""Ctrl-C during a run finishes the round; a second Ctrl-C stops at once."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedmix.core.errors import Interrupted
from fedmix.core.ranks import are_launched
from fedmix.core.signals import heard

SAME_PRESS_SECONDS = 1.0  # the terminal tells a process of one press, and so does its launcher


def among(done: int, runs: int) -> Interrupted:
    """Return the error of a command that was stopped among several runs."""
    return Interrupted(
        f"stopped with {done} of {runs} runs done; nothing is lost: run the same command again, "
        "and it goes on where it was"
    )


@contextmanager
def finish_round_on_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed since the block was entered.

    Python handles signals in the main thread only; in another thread it always returns False.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed a second time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed: float | None = None

    def press() -> None:
        nonlocal pressed
        now = time.monotonic()
        if pressed is None:
            pressed = now
            # by print, which rich lets appear above live lines, and not by another console
            print("finishing this round; Ctrl-C again stops at once", file=sys.stderr)
        elif not are_launched() or now - pressed > SAME_PRESS_SECONDS:
            raise KeyboardInterrupt

    with heard([signal.SIGINT], press):
        yield lambda: pressed is not None
