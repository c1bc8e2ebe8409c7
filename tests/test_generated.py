"""What is generated in README and docs is what the published runs and the package give now."""

import json
import re
from pathlib import Path

import pytest
from docs.generate import MARKED, PARTS, ROOT, filled, pages, small, tables
from docs.generate.pictures import PICTURES
from docs.generate.runs import LAST_TEN, STORE, Row, difference, published
from docs.generate.tables import row, told

from fedmix.paper import TABLES
from fedmix.paper.study import Study
from fedmix.runs.store import packed_in


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_what_make_results_writes(page: Path) -> None:
    text = page.read_text()
    assert filled(text) == text, "run: make results"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_make_results_draws(name: str, tmp_path: Path) -> None:
    PICTURES[name](tmp_path / name)
    drawn = (tmp_path / name).read_bytes()
    assert drawn == (ROOT / "docs" / "images" / name).read_bytes(), "run: make results"


def test_prose_of_the_readme_has_numbers_of_the_tables() -> None:
    said = " ".join((ROOT / "README.md").read_text().split())
    of_seeds = (ROOT / "docs" / "reproduction" / "cifar10.md").read_text()
    early = re.findall(r"^\| (?:NaiveMix|FedMix.*) − FedAvg \| 3 \| \+([\d.]+)", of_seeds, re.M)
    assert len(early) == 3
    assert f"by {min(early)} to {max(early)} points over FedAvg in rounds 55 to 100" in said
    worth = (ROOT / "docs" / "beyond.md").read_text()
    row = "NaiveMix, λ drawn, M = 5 | FedAvg |"
    ten, hundred, digits, femnist = (
        re.search(rf"^\| {data}: {re.escape(row)} [+-]([\d.]+)", worth, re.M)[1]  # type: ignore[index]
        for data in ("CIFAR-10, 2 classes", "CIFAR-100, 20 classes", "digits, 2 classes", "FEMNIST")
    )
    assert f"`meanmix` is {ten} points above FedAvg on CIFAR-10 and {hundred} on CIFAR-100" in said
    assert f"but {digits} below on digits and {femnist} on FEMNIST" in said


def test_the_time_that_the_readme_tells_is_that_of_the_published_run() -> None:
    said = " ".join((ROOT / "README.md").read_text().split())
    [seconds] = re.findall(
        r"^\| CIFAR-10, 500 rounds, FedMix \| (\d+) s", (ROOT / "docs/speed.md").read_text(), re.M
    )
    assert round(int(seconds) / 60) == 4
    assert "the paper's 500 rounds of CIFAR-10 take four minutes" in said


def test_every_part_is_on_a_page() -> None:
    used = {
        (found["kind"], found["name"])
        for page in pages()
        for found in MARKED.finditer(page.read_text())
    }
    assert used == {(kind, name) for kind, parts in PARTS.items() for name in parts}


# What is no result of a run: what the paper prints, a ratio of its formulas, settings, versions.
PRINTED = {
    "reproduction/cifar10.md": {"74.4", "80.7", "0.95"},
    "audit.md": {"0.55"},
    "speed.md": {"3.11", "3.14"},
}
SETTING = r"(?:λ =|momentum|Dirichlet) \d+\.\d+"
NUMBER = r"(?<![\w.])\d+\.\d+(?![\w.])"


@pytest.mark.parametrize(
    "name",
    ["audit.md", "beyond.md", "privacy.md", "reproduction.md", "reproduction/small.md", "speed.md"]
    + [f"reproduction/{data}.md" for data in ("cifar10", "cifar100", "femnist", "shakespeare")],
)
def test_prose_names_no_number_that_no_table_of_its_page_has(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    tables = "".join(found["old"] for found in MARKED.finditer(page))
    prose = re.sub("```.*?```", "", MARKED.sub("", page), flags=re.DOTALL)
    prose = re.sub(SETTING, "", prose)
    known = set(re.findall(NUMBER, tables)) | PRINTED.get(name, set())
    assert set(re.findall(NUMBER, prose)) <= known


def test_what_the_readme_says_of_results_stands_in_a_table() -> None:
    every = "".join(found["old"] for page in pages() for found in MARKED.finditer(page.read_text()))
    [said] = re.findall(r"## What came out\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.S)
    named = set(re.findall(NUMBER, MARKED.sub("", said)))
    assert named
    assert named <= set(re.findall(NUMBER, every))


def test_every_published_run_is_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: set[Path] = set()

    def note(rows: list[Row], _: object) -> str:
        shown.update(run.packed.path for row in rows for run in row.runs)
        return ""

    monkeypatch.setattr(tables, "records", note)
    for write in PARTS["results"].values():
        write()
    assert {packed.path for packed in packed_in(STORE)} == shown


def test_every_run_at_small_scale_is_in_a_table_there_and_in_no_other() -> None:
    """And the mean of the last quarter's tests by hand: rounds 60, 62, ..., 80 of 80."""
    runs = packed_in(small.SMALL)
    shown = {e.id for name in small.SHOWN for e in Study(TABLES[name], (0,), "small").experiments()}
    assert {run.name for run in runs} <= shown
    assert not {run.path for run in runs} & {run.path for run in packed_in(STORE)}
    table = Study(TABLES["mean-size"], (0,), "small")
    wanted = table.experiment("cifar10-naivemix", "all", 0).id
    [one] = [run.content["metrics"] for run in runs if run.name == wanted]
    late = [a for r, a in zip(one["round"], one["accuracy"], strict=True) if r >= 60]
    assert len(late) == 11
    page = (ROOT / "docs" / "reproduction" / "small.md").read_text()
    [row] = re.findall(r"^\| CIFAR-10, NaiveMix \|.*", page, re.M)
    assert f" {100 * sum(late) / 11:.1f} (77.4) " in row


def test_a_number_of_a_table_by_hand() -> None:
    """FedAvg on CIFAR-100, from the lines of the store."""
    lines = (STORE / "cifar100.jsonl").read_text().splitlines()[1:]
    runs = [json.loads(line) for line in lines]
    tests = {
        run["experiment"]["seed"]: run["metrics"]["accuracy"]
        for run in runs
        if run["experiment"]["objective"]["name"] == "fedavg"
    }
    ten = {seed: sum(column[-10:]) / 10 for seed, column in tests.items()}
    mean = 50 * (ten[0] + ten[1])
    deviation = 100 * abs(ten[0] - ten[1]) / 2**0.5  # of two numbers
    assert row("cifar100", "fedavg").cell(LAST_TEN).text() == f"{mean:.1f} ± {deviation:.1f}"
    assert (
        f"| FedAvg | 2 | {mean:.1f} ± {deviation:.1f} |"
        in (ROOT / "docs" / "reproduction" / "cifar100.md").read_text()
    )


def test_scores_of_published_runs_are_those_of_their_rounds() -> None:
    """Tables read the summaries, curves and means of rounds the metrics."""
    finished = [packed.content for packed in packed_in(STORE) if "summary" in packed.content]
    assert len(finished) > 200
    for run in finished:
        summary, metrics = run["summary"], run["metrics"]
        tests = {
            number: accuracy
            for number, accuracy in zip(metrics["round"], metrics["accuracy"], strict=True)
            if accuracy is not None
        }
        last_ten = list(tests.values())[-10:]
        reached = [number for number, score in tests.items() if score >= summary["target"]]
        assert summary["last"] == last_ten[-1], run["run"]
        assert summary["best"] == max(tests.values()), run["run"]
        assert summary["mean_last_ten"] == pytest.approx(sum(last_ten) / 10, abs=1e-12), run["run"]
        assert summary["rounds_to_target"] == min(reached, default=None), run["run"]


def test_a_difference_is_over_the_seeds_that_both_have() -> None:
    fedmix, naivemix = row("cifar100", "fedmix"), row("cifar100", "naivemix")
    assert [len(one.runs) for one in (fedmix, naivemix)] == [1, 2]
    [value] = difference(fedmix, naivemix, LAST_TEN).differences
    first = [one.cell(LAST_TEN).results[0].value for one in (fedmix, naivemix)]
    assert value == first[0] - first[1]
    assert told(fedmix, naivemix, LAST_TEN) == f"{value:+.1f}".replace("-", "−")


def test_which_runs_are_meant_must_be_clear() -> None:
    """FedAvg with these settings was run with three seeds on a GPU, and with the same on a CPU."""
    standardised = {"data.normalise": "standard", "model.initialise": "he"}
    with pytest.raises(LookupError, match="say which"):
        _ = Row("", "femnist", "fedavg", standardised).runs
    on_cpu = Row("", "femnist", "fedavg", {**standardised, "engine.device": "cpu"}).runs
    assert [run.seed for run in on_cpu] == [0, 1, 2]
    assert sum(map(len, published().values())) == len(packed_in(STORE))
