"""Progress in a notebook, whose display is made up here: a line that changes in place."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console

from fedmix import Federation, Supervised, Training, data, models, record


def test_record_shows_a_bar_that_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(bundle["text/plain"])

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert display_id
        Handle().update(bundle, raw=raw)
        return Handle()

    made: Any = ModuleType("IPython.display")
    made.display = display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    real = Console.__init__

    def in_jupyter(self: Console, **settings: Any) -> None:
        real(self, **settings)
        self.is_jupyter = True

    monkeypatch.setattr(Console, "__init__", in_jupyter)
    torch.manual_seed(0)
    federation = Federation(
        models.digits_cnn(), data.digits(clients=20), Supervised(), Training(1, epochs=1)
    )
    record(federation, tmp_path / "run", 2)
    title = "digits fedavg seed 0"
    assert shown[0] == f"{title}  {'░' * 24}  0/2  "
    [half, whole] = [line for line in shown if "accuracy" in line]
    assert half.startswith(f"{title}  {'█' * 12}{'░' * 12}  1/2  accuracy")
    assert whole.startswith(f"{title}  {'█' * 24}  2/2  accuracy")
    assert capsys.readouterr().err == ""
