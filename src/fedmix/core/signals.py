"""Temporary handlers of signals."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def heard(numbers: Iterable[int], act: Callable[[], None]) -> Iterator[None]:
    """Call `act` when one of these signals arrives, while the context lasts.

    Works only in the main thread of a process.
    """
    before = {number: signal.signal(number, lambda *_: act()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
