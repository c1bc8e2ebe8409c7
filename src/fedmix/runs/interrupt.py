"""Ctrl-C during a run finishes the round; a second Ctrl-C stops at once."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedmix.core.ranks import are_launched
from fedmix.core.signals import heard
from fedmix.runs.progress import console

SAME_PRESS_SECONDS = 1.0  # the terminal tells a process of one press, and so does its launcher


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
            console().print("finishing this round; Ctrl-C again stops at once")
        elif not are_launched() or now - pressed > SAME_PRESS_SECONDS:
            raise KeyboardInterrupt

    with heard([signal.SIGINT], press):
        yield lambda: pressed is not None
