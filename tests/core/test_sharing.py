"""Threads that divide items: each item has one thread, and nothing is changed afterwards."""

import threading
from collections.abc import Iterator

import pytest
import torch

from fedmix.core.sharing import divided, sharing


@pytest.fixture
def _two() -> Iterator[None]:
    """Two threads, as a user may set them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def seen(item: int, meet: threading.Barrier) -> tuple[int, int, int]:
    meet.wait(60)  # so that no thread has both
    return item, threading.get_ident(), torch.get_num_threads()


@pytest.mark.usefixtures("_two")
@pytest.mark.parametrize("threads", [None, 1])
def test_all_threads_divide_items_also_where_fewer_share_an_operation(threads: int | None) -> None:
    meet = threading.Barrier(2)
    with sharing(threads):
        found = divided(seen, [(item, meet) for item in range(2)])
        assert torch.get_num_threads() == (threads or 2)
    assert [(item, count) for item, _, count in found] == [(0, 1), (1, 1)]
    assert len({ident for _, ident, _ in found}) == 2
    assert torch.get_num_threads() == 2
    later = list[int]()
    other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert later == [2]


@pytest.mark.usefixtures("_two")
def test_one_item_has_all_threads_and_an_error_is_raised_here() -> None:
    assert divided(lambda item: (item, torch.get_num_threads()), [(5,)]) == [(5, 2)]
    with pytest.raises(ZeroDivisionError):
        divided(lambda item: 1 / item, [(1,), (0,)])
