"""Temporary handlers of signals."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def heard(numbers: Iterable[int], act: Callable[[], None]) -> Iterator[None]:
    """Call `act` when one of these signals arrives, while the context lasts.

    Python handles signals in the main thread only; in another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: act()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
