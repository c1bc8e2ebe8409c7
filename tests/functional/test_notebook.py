"""The notebook runs, and prints what it shows."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_loop" / "own_loop.ipynb"


def test_every_cell_runs() -> None:
    """One round in the place of eight; accuracies are left out, and the words before them count."""
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec("".join(cell["source"]).replace("rounds=8", "rounds=1"), names)
            shown = "".join(text for out in cell["outputs"] for text in out["text"])
            assert words(printed.getvalue()) == words(shown)


def words(text: str) -> list[str]:
    return [line.split("[")[0] for line in text.splitlines()]
