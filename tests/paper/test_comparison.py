"""What is said of results: by hand."""

import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fedmix.paper import TABLES, Part, picture
from fedmix.paper.comparison import Compared, Comparison, Difference, Result, compare
from fedmix.paper.metrics import ACCURACY, ROUNDS, Metric
from fedmix.paper.show import caption
from fedmix.paper.study import Study
from fedmix.runs.failure import Failure

NAN = math.nan
Rounds = dict[int, int] | None


def cell(
    values: list[float],
    paper: float | None = None,
    *,
    diverged: Rounds = None,
    collapsed: Rounds = None,
    **more: object,
) -> Compared:
    """The cell of a row `name` with these values of seeds 0, 1, ..."""
    failures = {seed: Failure("diverged", when, "") for seed, when in (diverged or {}).items()}
    failures |= {seed: Failure("collapsed", when, "") for seed, when in (collapsed or {}).items()}
    results = tuple(Result(seed, value, failures.get(seed)) for seed, value in enumerate(values))
    metric = more.get("metric", ACCURACY)
    assert isinstance(metric, Metric)
    name = str(more.get("name", "fedmix"))
    return Compared(
        Part(name, name.title(), preset=str(more.get("preset", ""))),
        Part("cifar10", "CIFAR-10"),
        metric,
        paper,
        results,
    )


def comparison(*cells: Compared) -> Comparison:
    return Comparison(Study(TABLES["epochs"]), "last", tuple((c,) for c in cells))


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (cell([80.0, 81.0, 82.0]), "81.0 ± 1.0"),
        (cell([80.04]), "80.0"),
        (cell([80.0, NAN]), "80.0 (1 not run)"),
        (cell([NAN, NAN]), "–"),
        (cell([NAN, NAN], diverged={0: 2, 1: 7}), "diverged in rounds 2, 7"),
        (cell([NAN, 50.0, NAN], diverged={0: 2}), "50.0 (1 diverged in round 2; 1 not run)"),
        (
            cell([NAN, NAN], diverged={0: 2}, collapsed={1: 60}),
            "1 diverged in round 2; 1 collapsed in round 60",
        ),
        (cell([NAN, NAN, NAN], diverged={0: 2}), "1 diverged in round 2; 2 not run"),
        (
            cell([NAN, math.inf, NAN], diverged={0: 1, 2: 3}, metric=ROUNDS),
            "2 diverged in rounds 1, 3; 1 never",
        ),
        (cell([math.inf, NAN], metric=ROUNDS), "1 never; 1 not run"),
        (cell([NAN, 50.0, NAN], collapsed={0: 60, 2: 60}), "50.0 (2 collapsed in round 60)"),
        (cell([math.inf, math.inf], metric=ROUNDS), "never"),
        (cell([math.inf, 30.0, 40.0], metric=ROUNDS), "35 ± 7 (1 never)"),
    ],
)
def test_a_cell_says_what_befell_every_seed(one: Compared, said: str) -> None:
    assert one.text() == said


def test_order_counts_pairs() -> None:
    """The paper: 73.8 < 77.4 < 81.2. Ours: 70, 75, 74, so the last pair is turned round."""
    assert comparison(cell([70.0], 73.8), cell([75.0], 77.4), cell([74.0], 81.2)).order(0) == (2, 3)


def test_order_leaves_out_what_cannot_be_told() -> None:
    """Equal in the paper, not in the paper, not run, another data set; equal with us is not the
    paper's order.
    """
    assert comparison(cell([70.0], 56.9), cell([75.0], 56.9), cell([1.0]), cell([NAN], 3.0)).order(
        0
    ) == (0, 0)
    assert comparison(
        cell([70.0], 1.0, preset="femnist"), cell([75.0], 2.0, preset="cifar10")
    ).order(0) == (0, 0)
    assert comparison(cell([70.0], 1.0), cell([70.0], 2.0)).order(0) == (0, 1)


def test_a_run_that_gave_no_number_stands_last() -> None:
    """Diverged: below all accuracies. Never there: after all rounds; two such tell nothing."""
    assert comparison(cell([70.0], 85.3), cell([NAN], 86.5, diverged={0: 2})).order(0) == (0, 1)
    assert comparison(cell([70.0, 71.0], 86.5), cell([90.0, NAN], 85.3, collapsed={1: 60})).order(
        0
    ) == (1, 1)
    rounds = [
        cell([60.0], 23, metric=ROUNDS),
        cell([math.inf], 26, metric=ROUNDS),
        cell([math.inf], 28, metric=ROUNDS),
    ]
    assert comparison(*rounds).order(0) == (2, 2)


def test_a_paired_t_test_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, t = 2√3 = 3.464 with 2 degrees of freedom.

    There p = 1 - t/√(2 + t²) (the distribution with 2 degrees in closed form), and the 97.5 % point
    is 4.3027.
    """
    difference = Difference(
        cell([81.0, 72.0, 93.0], 81.2), cell([80.0, 70.0, 90.0], 73.8, name="fedavg")
    )
    tested = difference.test()
    assert tested is not None
    t = 2 * math.sqrt(3)
    assert tested == pytest.approx(
        (2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3), 1 - t / math.sqrt(2 + t * t)),
        abs=1e-5,
    )
    assert difference.text() == (
        "CIFAR-10: Fedmix − Fedavg = +2.0 (95 % interval -0.5 to +4.5, paired t-test over 3 seeds, "
        "p = 0.074; the paper: +7.4)"
    )


def test_pairing_removes_what_a_seed_does_to_both() -> None:
    """Seeds differ by 20 points, the algorithms by 1 ± 0.1: Welch's test would see nothing."""
    tested = Difference(cell([61.0, 71.1, 80.9]), cell([60.0, 70.0, 80.0], name="fedavg")).test()
    assert tested is not None
    assert tested[2] < 0.01


def test_without_two_seeds_there_is_no_test() -> None:
    one = Difference(cell([81.0]), cell([80.0], name="fedavg"))
    assert one.test() is None
    assert one.text() == "CIFAR-10: Fedmix − Fedavg = +1.0 (one seed: no test)"
    other = Difference(
        cell([81.0, NAN], diverged={1: 2}), cell([NAN, 80.0], name="fedavg", diverged={0: 2})
    )
    assert other.text() == "CIFAR-10: Fedmix − Fedavg: no seed has both"
    same = Difference(cell([81.0, 71.0]), cell([80.0, 70.0], name="fedavg"))
    assert same.text().endswith("(the same in all 2 seeds: no test)")


def test_only_rows_that_ran_are_compared() -> None:
    fedavg = cell([80.0], name="fedavg")
    assert [d.second.row.name for d in comparison(cell([81.0]), fedavg).differences()] == ["fedavg"]
    assert not comparison(cell([NAN]), fedavg).differences()


def test_runs_of_another_length_than_a_title_says_are_named(tmp_path: Path) -> None:
    main = TABLES["main"]
    for study, said in (
        (Study(main), "Ours: one seed, accuracy "),
        (
            Study(main, changes={"rounds": 300}),
            "Ours: one seed, 300 rounds instead of 200 or 500, accuracy ",
        ),
        (
            Study(main, (0, 1), "small"),
            "over 2 seeds, 80 rounds instead of 200 or 500, accuracy ",
        ),
    ):
        assert said in caption(compare(study, tmp_path))


@pytest.mark.parametrize("name", TABLES)
def test_a_picture_holds_all_that_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside a single column, and where settings were changed."""
    drawn: list[Figure] = []
    monkeypatch.setattr(picture, "write_figure", lambda _, figure: drawn.append(figure))
    study = Study(
        TABLES[name],
        scale="small",
        changes={"training.momentum": 0.5, "training.weight_decay": 1e-5},
    )
    picture.draw(compare(study, tmp_path), tmp_path / "it.png")
    [figure] = drawn
    figure.draw_without_rendering()
    title = figure.get_suptitle()
    assert title.replace("\n", " ") == " ".join(
        [*study.warnings, study.table.title, caption(compare(study, tmp_path))]
    )
    box = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert 0 <= box.y0 < box.y1 <= figure.bbox.height


@pytest.mark.parametrize(
    ("columns", "changes", "apart"),
    [("cifar10", {}, 5), ("cifar10", {"evaluate_every": 1}, 1), ("femnist", {}, 1)],
)
def test_how_exact_rounds_are_is_said_of_what_is_shown(
    columns: str, changes: dict[str, int], apart: int, tmp_path: Path
) -> None:
    shown = compare(Study(TABLES["main"].select("fedavg", columns), changes=changes), tmp_path)
    assert any(
        f"exact to {apart} where tests are {apart} rounds apart" in note for note in shown.notes()
    ) == (apart > 1)
