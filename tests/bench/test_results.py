"""Files of records: written whole, read with care, shown as tables and charts."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedmix import BadInput
from fedmix.bench import results
from fedmix.bench.plot import draw_speedups
from fedmix.bench.results import Record, read_steps, with_speedups

LENET = {"workload": "lenet", "algorithm": "fedmix"}
ROWS: list[dict[str, Any]] = [
    LENET
    | {
        "variant": "plain",
        "ms_per_step": 60.0,
        "low": 55.0,
        "high": 66.0,
        "clients": 10,
        "batch": 10,
    },
    LENET
    | {
        "variant": "compiled",
        "ms_per_step": 7.5,
        "low": 7.0,
        "high": 8.0,
        "padding": 0.25,
        "threads": 2,
        "outside": 0.031,
    },
    LENET
    | {"variant": "other", "ms_per_step": 120.0, "low": 119.0, "high": 121.0, "something": "else"},
]


def file(folder: Path, rows: Any, name: str = "steps.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"records": rows}))
    return path


def test_speed_is_against_the_plain_loop_of_the_same_file_and_device(tmp_path: Path) -> None:
    """60 / 7.5 = 8 and 60 / 120 = 0.5; on another device, and in another file, there is no plain
    loop to compare with.
    """
    elsewhere = ROWS[1] | {"device": "cuda"}
    assert [r.speedup for r in read_steps(file(tmp_path, [*ROWS, elsewhere]))] == [
        1.0,
        8.0,
        0.5,
        None,
    ]
    assert [r.speedup for r in read_steps(file(tmp_path, ROWS[1:]))] == [None, None]
    assert [r.speedup for r in read_steps(file(tmp_path, [ROWS[1] | {"speedup": 3.0}]))] == [3.0]


def test_written_records_come_back(tmp_path: Path) -> None:
    records = with_speedups(read_steps(file(tmp_path, ROWS)))
    about = {"command": "fedmix bench steps", "machine": {"cpu": "any"}}
    path = tmp_path / "again.json"
    path.write_text(results.content("steps", about, records, ["a note"]))
    assert read_steps(path) == records
    content = json.loads(path.read_text())
    assert (content["kind"], content["command"], content["notes"]) == (
        "steps",
        "fedmix bench steps",
        ["a note"],
    )
    assert "warmup_s" not in content["records"][0]  # what was not measured is not there
    assert {p.name for p in tmp_path.iterdir()} == {"steps.json", "again.json"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [{"workload": "lenet"}],
            "holds no records of steps; each needs workload, algorithm, variant, ms_per_step, "
            "low, high",
        ),
        ("text", "holds no records of steps"),
        ([7], "holds no records of steps"),
        ([ROWS[0] | {"ms_per_step": "fast"}], r"ms_per_step='fast' is not a finite number"),
        ([ROWS[0] | {"ms_per_step": math.nan}], r"ms_per_step='nan' is not a finite number"),
        ([ROWS[0] | {"low": True}], r"low='true' is not a finite number"),
        ([ROWS[0] | {"variant": 3}], r"variant='3' is not text"),
        ([ROWS[0] | {"ms_per_step": 0}], "a step of plain takes no time"),
        ([ROWS[1] | {"speedup": 0}], "a step of compiled takes no time"),
    ],
)
def test_files_that_hold_something_else_are_refused(rows: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        read_steps(file(tmp_path, rows))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_steps(tmp_path / "gone.json")
    (tmp_path / "torn.json").write_text('{"records": [')
    with pytest.raises(BadInput, match="holds no records"):
        read_steps(tmp_path / "torn.json")


def shown(records: list[Record]) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(results.table(records).rich())
    return capture.get()


def test_table_has_a_heading_for_each_workload_and_no_empty_columns(tmp_path: Path) -> None:
    text = shown(read_steps(file(tmp_path, ROWS)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "ms range vs plain threads outside padding" in lines
    assert "lenet fedmix, 10x10" in lines
    assert "plain 60.0 55.0–66.0 1.00x" in lines
    assert "compiled 7.50 7.00–8.00 8.00x 2 3.1 % 25 %" in lines
    assert "warm-up" not in text


def test_markdown_has_the_same_cells(tmp_path: Path) -> None:
    lines = results.table(read_steps(file(tmp_path, ROWS))).markdown().splitlines()
    assert (
        lines[0] == "| workload | variant | ms | range | vs plain | threads | outside | padding |"
    )
    assert lines[2] == "| lenet fedmix, 10x10 | plain | 60.0 | 55.0–66.0 | 1.00x |  |  |  |"
    assert lines[4].startswith("| lenet fedmix | other | 120 |")


def test_names_from_a_file_cannot_steer_a_terminal_or_break_a_table(tmp_path: Path) -> None:
    wild = [ROWS[0] | {"variant": "\x1b[31mred|", "workload": "[bold]x"}]
    records = read_steps(file(tmp_path, wild))
    assert "\x1b" not in shown(records)
    assert "[bold]x" in shown(records)
    assert all(line.count("|") == 5 for line in results.table(records).markdown().splitlines())


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_chart_is_the_same_for_the_same_numbers(ending: str, tmp_path: Path) -> None:
    records = read_steps(file(tmp_path, [*ROWS, ROWS[0] | {"variant": "$x$", "ms_per_step": 30.0}]))
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    draw_speedups(records, first)
    draw_speedups(records, second)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG" if ending == "png" else b"<?xml")


def test_a_chart_says_how_it_was_measured(tmp_path: Path) -> None:
    """In an SVG each letter is a drawing of its own, with the text beside them as a comment."""
    path = tmp_path / "a.svg"
    draw_speedups(with_speedups(read_steps(file(tmp_path, ROWS))), path, "as it is by default")
    assert "<!-- as it is by default -->" in path.read_text()


def test_chart_refuses_what_it_cannot_draw(tmp_path: Path) -> None:
    records = read_steps(file(tmp_path, ROWS))
    with pytest.raises(BadInput, match=r"\.png or \.svg"):
        draw_speedups(records, tmp_path / "a.pdf")
    with pytest.raises(BadInput, match="nothing to draw"):
        draw_speedups(read_steps(file(tmp_path, ROWS[1:])), tmp_path / "a.svg")
