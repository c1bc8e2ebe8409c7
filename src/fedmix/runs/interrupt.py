"""Ctrl-C during a run finishes the round; a second Ctrl-C stops at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedmix.core.signals import heard
from fedmix.runs.progress import console


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
    pressed = False

    def press() -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        console().print("finishing this round; Ctrl-C again stops at once")

    with heard([signal.SIGINT], press):
        yield lambda: pressed
