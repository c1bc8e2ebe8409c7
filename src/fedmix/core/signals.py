"""Signals that mean something else for a while."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def heard(numbers: Iterable[int], act: Callable[[], None]) -> Iterator[None]:
    """While this lasts, `act` is called when one of these signals comes.

    Only a process's first thread can ask for that.
    """
    before = {number: signal.signal(number, lambda *_: act()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
