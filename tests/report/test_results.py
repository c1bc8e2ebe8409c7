"""The numbers of results by hand, and their forms: CSV, terminal, picture."""

import csv
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fedmix.core.errors import BadInput
from fedmix.report import curves, draw, load_runs, results_of
from fedmix.report.series import band
from tests.report.folders import run_folder, scored, spec, study, write_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def test_numbers_by_hand(tmp_path: Path) -> None:
    scored(tmp_path / "a", 0, [0.5, 0.9, 0.8])
    scored(tmp_path / "b", 1, [0.3, 0.4, 0.6])
    [row] = results_of(load_runs([tmp_path])).rows
    assert row.last.mean == pytest.approx(0.7)
    assert row.last.deviation == pytest.approx(math.sqrt(2 * 0.1**2))  # n - 1 = 1
    assert row.best.mean == pytest.approx(0.75)
    assert row.last_ten.mean == pytest.approx((2.2 / 3 + 1.3 / 3) / 2)
    assert (row.to_target.mean, row.to_target.deviation, row.reached, row.runs) == (
        2,
        None,
        1,
        2,
    )  # the target is 0.88
    assert (row.seconds.mean, row.bytes_up.mean, row.bytes_down.mean) == (6, 12e6, 18e6)


def test_the_scores_of_a_finished_run_are_those_of_its_summary(tmp_path: Path) -> None:
    """They are read and not computed again, until the run is given more rounds."""
    folder = scored(tmp_path / "a", 0, [0.5, 0.9, 0.8])
    summary = json.loads((folder / "summary.json").read_text())
    told = {"last": 0.1, "best": 0.2, "mean_last_ten": None, "rounds_to_target": 7}
    (folder / "summary.json").write_text(json.dumps(summary | told))
    [run] = load_runs([folder])
    assert tuple(run.scores) == (0.1, 0.2, math.inf, 7)
    grown = (folder / "experiment.toml").read_text().replace("rounds = 3", "rounds = 4")
    (folder / "experiment.toml").write_text(grown)
    [run] = load_runs([folder])
    assert list(run.scores) == pytest.approx([0.8, 0.9, 2.2 / 3, 2])


def test_last_ten_leaves_earlier_rounds_out(tmp_path: Path) -> None:
    [row] = results_of(load_runs([scored(tmp_path / "a", 0, [0.0] * 5 + [0.5] * 10)])).rows
    assert row.last_ten.mean == 0.5


def test_cells_are_in_units_for_people(tmp_path: Path) -> None:
    scored(tmp_path / "a", 0, [0.5, 0.9, 0.8])
    scored(tmp_path / "b", 1, [0.3, 0.4, 0.6])
    made = results_of(load_runs([tmp_path])).table()
    cells = dict(zip(made.titles, made.rows[0], strict=True))
    assert cells == {
        "": "fedmix",
        "runs": "2",
        "last": "70.0 ± 14.1",
        "best": "75.0 ± 21.2",
        "last 3": "58.3 ± 21.2",
        "rounds to 88 %": "2 (1/2)",
        "seconds": "6.00",
        "MB up": "12.0",
        "MB down": "18.0",
    }


def test_fewer_than_ten_evaluations_are_told(tmp_path: Path) -> None:
    """In the title if all have the same number, else in the cells of those that have fewer."""
    scored(tmp_path / "a", 0, [0.5] * 3, objective={"lam": 0.1})
    scored(tmp_path / "b", 0, [0.5] * 4, objective={"lam": 0.2})
    made = results_of(load_runs([tmp_path])).table()
    assert made.titles[4] == "last ten"
    assert [row[4] for row in made.rows] == ["50.0 (of 3)", "50.0 (of 4)"]
    assert "or of all where there are fewer" in made.caption
    made = results_of(load_runs([tmp_path / "b"])).table()
    assert (made.titles[4], made.rows[0][4]) == ("last 4", "50.0")
    scored(tmp_path / "c", 0, [0.5] * 11, objective={"lam": 0.3})
    assert results_of(load_runs([tmp_path / "c"])).table().caption.endswith("last ten evaluations")


def test_the_best_of_finished_groups_are_marked(tmp_path: Path) -> None:
    """One group ends best, one had the best round, and one that is not finished does not count.

    The target is 0.88: only the second reached it, and one whose other seed did not is not marked.
    """
    scored(tmp_path / "a", 0, [0.2, 0.5, 0.8], objective={"lam": 0.1})
    scored(tmp_path / "b", 0, [0.2, 0.9, 0.7], objective={"lam": 0.2})
    scored(tmp_path / "c", 0, [0.95, 0.1, 0.1], objective={"lam": 0.3})
    scored(tmp_path / "d", 1, [0.1, 0.1, 0.1], objective={"lam": 0.3})
    (scored(tmp_path / "e", 0, [0.99] * 3, objective={"lam": 0.4}) / "summary.json").unlink()
    rows = results_of(load_runs([tmp_path])).marked()
    assert [[cell.title for cell in row if cell.best] for row in rows] == [
        ["last"], ["best", "last 3", "rounds to 88 %"], [], [],
    ]  # fmt: skip
    assert [cell.value for cell in rows[1]] == pytest.approx([1, 0.7, 0.9, 0.6, 2, 6, 12e6, 18e6])


def test_rounds_to_different_targets_have_no_best(tmp_path: Path) -> None:
    scored(tmp_path / "a", 0, [0.2, 0.9], objective={"lam": 0.1})
    easy = scored(tmp_path / "b", 0, [0.5, 0.6], objective={"lam": 0.2})
    summary, toml = easy / "summary.json", easy / "experiment.toml"
    toml.write_text(toml.read_text().replace("target = 0.88", "target = 0.4"))
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"rounds_to_target": 1}))
    rows = results_of(load_runs([tmp_path])).marked()
    assert [cell.text for row in rows for cell in row if cell.title == "rounds to target"] == [
        "2 to 88 %", "1 to 40 %",
    ]  # fmt: skip
    assert not any(cell.best for row in rows for cell in row if cell.title == "rounds to target")


def test_lower_is_better_for_squared_errors(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", spec(rounds=3) | {"target": 3.0})
    write_lines(
        folder, [{"round": 1, "mse": 5.0}, {"round": 2, "mse": 2.0}, {"round": 3, "mse": 4.0}]
    )
    [row] = results_of(load_runs([folder])).rows
    assert (row.best.mean, row.to_target.mean, row.last.mean) == (2, 2, 4)


def test_unfinished_and_not_evaluated_runs_have_a_place(tmp_path: Path) -> None:
    run_folder(tmp_path / "a", spec(rounds=9), done=3)
    (run_folder(tmp_path / "b", spec("fedavg", rounds=9), done=1) / "metrics.jsonl").write_text("")
    fedavg, fedmix = results_of(load_runs([tmp_path])).table().rows
    assert (fedavg[0], fedavg[2]) == ("fedavg (unfinished)", "–")
    assert fedmix[0] == "fedmix (unfinished)"


def test_csv_has_plain_numbers_and_no_formulas(tmp_path: Path) -> None:
    scored(tmp_path / "a", 0, [0.5, 0.75], objective={"name": "=1+1"})
    [row] = csv.DictReader(io.StringIO(results_of(load_runs([tmp_path])).numbers().csv()))
    assert row["label"] == "'=1+1"
    assert (float(row["best"]), row["best_deviation"], float(row["bytes_up"])) == (0.75, "", 8e6)


def test_a_terminal_shows_labels_as_they_are_and_numbers_whole(tmp_path: Path) -> None:
    from rich.console import Console

    study(tmp_path / "runs", rounds=12)
    scored(tmp_path / "odd", 0, [0.5], objective={"name": "[red]odd[/]"})
    out = io.StringIO()
    Console(file=out, width=80).print(results_of(load_runs([tmp_path])).table().rich())
    assert "[red]odd[/]" in out.getvalue()
    assert len(re.findall(r"\d+\.\d±\d+\.\d ", out.getvalue())) >= 9
    assert "…" not in out.getvalue()


def test_a_band_is_mean_and_range_over_the_runs_that_got_there(tmp_path: Path) -> None:
    scored(tmp_path / "a", 0, [0.2, 0.6, 0.8])
    write_lines(
        scored(tmp_path / "b", 1, [0.4, 0.4, 0.4]), [{"round": 1, "accuracy": 0.4, "seconds": 4.0}]
    )
    values = band(load_runs([tmp_path]), "accuracy", "seconds")
    np.testing.assert_allclose(values.mean, [0.3, 0.6, 0.8])
    np.testing.assert_allclose(values.low, [0.2, 0.6, 0.8])
    np.testing.assert_allclose(values.high, [0.4, 0.6, 0.8])
    np.testing.assert_allclose(values.x, [3, 4, 6])
    np.testing.assert_allclose(values.runs, [2, 1, 1])


def test_pictures_are_written_whole(tmp_path: Path) -> None:
    from PIL import Image

    study(tmp_path / "runs", rounds=12)
    scored(tmp_path / "runs/odd", 0, [0.5], objective={"name": r"$\frac"})
    runs = load_runs([tmp_path / "runs"])
    (out := tmp_path / "out").mkdir()
    draw(runs, out / "a.png")
    draw(runs, out / "a.svg")
    with Image.open(out / "a.png") as picture:
        assert picture.width > 900
    assert "<svg" in (out / "a.svg").read_text()
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "a.svg"]


def drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> "Figure":
    """The picture of the runs in a folder, laid out."""
    figures: list[Figure] = []
    monkeypatch.setattr(curves, "write_figure", lambda _, figure: figures.append(figure))
    draw(load_runs([folder]), folder / "it.png")
    [figure] = figures
    figure.draw_without_rendering()
    return figure


def test_each_data_set_has_axes_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, lam in (("digits", 0.1), ("digits", 0.2), (r"$\frac", 0.1)):
        scored(
            tmp_path / f"{name[1:]}-{lam}",
            0,
            [0.5, 0.6],
            data={"name": name},
            objective={"lam": lam},
        )
    write_lines(run_folder(tmp_path / "begun", spec(rounds=2, data={"name": "begun"})), [])
    axes = drawn(tmp_path, monkeypatch).axes
    assert {one.get_title(): len(one.lines) for one in axes} == {"digits": 2, r"$\frac": 1}


def test_a_long_legend_is_beside_the_curves_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are 8 colours with 4 dashes each, so the 33rd line has axes of its own."""
    for i in range(33):
        long = {"name": "fedmix " + "and more " * (9 if i == 4 else 1)}
        scored(tmp_path / f"{i}", 0, [0.5, 0.6], objective=long | {"lam": i})
    figure = drawn(tmp_path, monkeypatch)
    assert [(axes.get_title(), len(axes.lines)) for axes in figure.axes] == [
        ("digits, part 1 of 2", 32),
        ("digits, part 2 of 2", 1),
    ]
    for axes in figure.axes:
        beside = axes.get_legend()
        assert beside is not None
        legend, inside = beside.get_window_extent(), axes.get_window_extent()
        assert inside.x1 <= legend.x0 < legend.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= legend.y0 < legend.y1 <= figure.bbox.y1
        assert inside.width > 0.4 * figure.bbox.width
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(
            axes.lines
        )


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    runs = load_runs([run_folder(tmp_path / "run", spec(rounds=2))])
    with pytest.raises(BadInput, match=r"\.png or \.svg"):
        draw(runs, tmp_path / "a.pdf")
    with pytest.raises(BadInput, match="cannot be written"):
        draw(runs, tmp_path / "missing" / "a.png")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(BadInput, match="nothing to draw"):
        draw(load_runs([tmp_path / "run"]), tmp_path / "a.png")


def test_importing_the_report_brings_no_heavy_library() -> None:
    heavy = "matplotlib", "rich", "jinja2", "PIL"
    code = f"import sys, fedmix.report; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
