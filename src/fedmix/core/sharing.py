"""How the threads of this process share work: one operation of all, or an item for each."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_all: int | None = None  # the threads of this process, where fewer share an operation


@contextmanager
def sharing(threads: int | None) -> Iterator[None]:
    """Let so many threads share an operation in this block; None changes nothing."""
    global _all
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    outer, _all = _all, _all or before
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _all = outer


def divided(work: Callable[..., T], items: Iterable[tuple[Any, ...]]) -> list[T]:
    """Return what `work` returns for each item; all threads of this process divide the items.

    Threads then meet once, and not in each operation of an item, which has one thread.
    """
    items, now = list(items), torch.get_num_threads()
    count = min(_all or now, len(items))
    if count == 1:
        return [work(*item) for item in items]
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(lambda item: work(*item), items))
    torch.set_num_threads(now)  # else threads that others start later would have one, too
    return found
