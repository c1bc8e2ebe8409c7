"""The notebook runs, and prints what it shows."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_loop" / "own_loop.ipynb"


def test_every_cell_runs() -> None:
    """Accuracies depend on the machine's rounding; the words before them do not."""
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec("".join(cell["source"]), names)
            shown = "".join(text for out in cell["outputs"] for text in out["text"])
            assert words(printed.getvalue()) == words(shown)
    assert len(names["federated"](names["mixed"], rounds=2)) == 2


def words(text: str) -> list[str]:
    return [line.split("[")[0] for line in text.splitlines()]
