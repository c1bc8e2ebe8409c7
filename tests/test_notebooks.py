"""The notebooks run, and print what they show."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "own_data", "own_loop"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one round, so that numbers are left out, and the words around them count."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(re.sub(r"(?i)(rounds ?= ?)\d+", r"\g<1>1", "".join(cell["source"])), names)
            shown = "".join(text for out in cell["outputs"] for text in out["text"])
            assert words(printed.getvalue()) == words(shown)


def words(text: str) -> list[str]:
    return [re.sub(r"\[[\d., ]*]|[\d.]+", "#", line) for line in text.splitlines()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_of_a_machine_is_kept(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert notebook["metadata"]["language_info"] == {"name": "python"}
    for cell in notebook["cells"]:
        assert not cell["metadata"]
        assert not re.search(
            r"(?:^|[\s'\"])/\w+/", "".join(cell["source"]) + str(cell.get("outputs"))
        )
