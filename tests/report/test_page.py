"""The page holds everything, asks for nothing, and draws in a real browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedmix.core.errors import BadInput
from fedmix.report import load_runs, write_html
from tests.report.chromium import BROWSER, Page, chromium
from tests.report.folders import run_folder, spec, study, write_lines

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


class Reader(HTMLParser):
    """The elements of a page and the text in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data

    @property
    def figures(self) -> list[dict[str, Any]]:
        """The charts' JSON."""
        return list(json.loads(self.scripts[0]))


def report(folder: Path, path: Path) -> Reader:
    write_html(load_runs([folder]), path)
    return Reader(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on three algorithms with three seeds, and a hostile unfinished run."""
    folder = tmp_path_factory.mktemp("report")
    study(folder / "runs")
    named = spec(
        "fedmix", 0, 40, objective={"lam": 0.2}, data={"name": HOSTILE}, exchange={"m": HOSTILE}
    )
    run_folder(folder / "runs/hostile", named, done=23, command=f"fedmix run {HOSTILE}")
    write_html(load_runs([folder / "runs"]), folder / "report.html")
    return folder / "report.html"


def test_plotly_is_inlined_once_and_nothing_is_asked_for(written: Path) -> None:
    page = Reader(written.read_text("utf-8"))
    assert len(page.scripts) == 3
    assert sum("plotly.js v" in script for script in page.scripts) == 1
    asked = [a[name] for _, a in page.elements for name in ("src", "href") if a.get(name)]
    assert asked
    assert all(address and address.startswith(("data:image/png;base64,", "#")) for address in asked)


def test_figures_are_valid_to_plotly(written: Path) -> None:
    import plotly.graph_objects as go  # type: ignore[import-untyped]

    page = Reader(written.read_text("utf-8"))
    assert len(page.figures) == sum(
        "chart" in (a.get("class") or "").split() for _, a in page.elements
    )
    assert (
        len(page.figures) == 2 * (5 + 1) + 2
    )  # for each of two data sets five curves, rounds to target, a heat map
    for figure in page.figures:
        go.Figure(
            data=figure["data"], layout=figure["layout"]
        )  # raises on anything it does not know


def test_hostile_text_stays_text(written: Path) -> None:
    text = written.read_text("utf-8")
    page = Reader(text)
    assert "<script>window.hacked" not in text
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert all(tag != "img" or (a["src"] or "").startswith("data:") for tag, a in page.elements)
    assert not re.search(
        r"<(?!/?b>)\w", json.dumps([[t.get("name") for t in f["data"]] for f in page.figures])
    )


def test_the_page_says_what_the_runs_said(written: Path) -> None:
    text = written.read_text("utf-8")
    for said in (
        "fedmix run digits --algorithm naivemix --seed 2 --rounds 40 --out runs",
        "unfinished</strong> after 23 of 40 rounds",
        "No formal guarantee: means of m=all samples with no noise.",
        "Not stated yet: a run states it when it ends.",
        "What M = 1 would have sent",
        '<tr class="differs"><th scope="row">objective.lam</th>',
        '<th scope="row">training.lr</th><td colspan="4">0.01</td>',
    ):
        assert said in text


def test_many_clients_are_cut_and_it_is_said(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", spec(rounds=2, data={"clients": 130}))
    page = report(tmp_path / "run", tmp_path / "a.html")
    assert len(page.figures[-1]["data"][0]["z"]) == 100
    assert "The first 100 of 130 clients are shown." in (tmp_path / "a.html").read_text()


def test_regression_without_classes_or_pictures(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", spec("fedavg", rounds=3))
    write_lines(
        folder, [{"round": r, "mse": 3000.0 / r, "loss": float("nan")} for r in range(1, 4)]
    )
    (folder / "clients.json").write_text(
        json.dumps({"classes": None, "sizes": [3, 5, 4], "counts": []})
    )
    page = report(folder, tmp_path / "a.html")
    assert page.figures[0]["data"][0]["y"] == [3000, 1500, 1000]
    assert page.figures[1]["data"][0]["y"] == [None] * 3
    text = (tmp_path / "a.html").read_text()
    assert "3 clients with 3 to 5 samples (median 4), 12 in all." in text
    assert 'id="means"' not in text


def test_seeds_that_differ_in_privacy(tmp_path: Path) -> None:
    """The smallest client may differ from seed to seed, and ε with it: each is said."""
    for seed, said in enumerate(("ε of 1.", "ε of 2.")):
        folder = run_folder(tmp_path / f"runs/{seed}", spec("fedmix", seed, 2))
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"privacy": said}))
    report(tmp_path / "runs", tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    assert text.count("ε of 1.") == text.count("ε of 2.") == 1


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", spec(rounds=3), done=1)
    (folder / "metrics.jsonl").write_text("")
    assert [
        figure["data"][0]["type"] for figure in report(folder, tmp_path / "a.html").figures
    ] == ["heatmap"]


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    runs = load_runs([run_folder(tmp_path / "run", spec(rounds=2))])
    (tmp_path / "taken").mkdir()
    with pytest.raises(BadInput, match="taken cannot be written"):
        write_html(runs, tmp_path / "taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "light"), (400, "dark")])
def test_every_chart_is_drawn_in_chromium(
    browser: Page, written: Path, width: int, scheme: str
) -> None:
    browser.open(written, width, scheme=scheme)
    drawn = (
        "[...document.querySelectorAll('.chart')]"
        ".map(c => c.querySelectorAll('.trace, .hm image').length)"
    )
    assert all(traces > 0 for traces in browser.evaluate(drawn))
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("window.hacked === undefined")
    ink = browser.evaluate("getComputedStyle(document.querySelector('.chart .xtick text')).fill")
    assert ink == {"light": "rgb(28, 32, 36)", "dark": "rgb(230, 233, 236)"}[scheme]
    assert browser.problems == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [written.as_uri()]


def test_charts_fit_the_paper_and_the_window(browser: Page, written: Path, tmp_path: Path) -> None:
    widths = (
        "[...document.querySelectorAll('.chart:not(.wide) .main-svg')]"
        ".map(s => s.width.baseVal.value)"
    )
    browser.open(written)
    browser.evaluate("addEventListener('beforeprint', () => { window.printed = " + widths + " })")
    before = browser.evaluate(widths)
    browser.pdf(tmp_path / "a.pdf")
    assert set(browser.evaluate("window.printed")) == {335}
    assert browser.evaluate(widths) == before
    assert browser.problems == []


def test_scores_by_clients_samples(tmp_path: Path) -> None:
    """Twelve clients in ten parts: the two smallest, the next two, then one each; a client without
    a score leaves a gap.
    """
    folder = run_folder(tmp_path / "run", spec(rounds=2))
    sizes = [10 * k for k in range(12, 0, -1)]
    scores = [k / 100 for k in range(12, 0, -1)]
    (folder / "clients.json").write_text(
        json.dumps({"classes": None, "sizes": sizes, "scores": [None, *scores[1:]]})
    )
    [trace] = next(
        figure["data"] for figure in report(folder, tmp_path / "a.html").figures
        if figure["layout"].get("xaxis", {}).get("title", {}).get("text")
        == "training samples of a client"
    )  # fmt: skip
    assert trace["x"] == [15, 35, 50, 60, 70, 80, 90, 100, 110, 120]
    assert trace["y"] == [1.5, 3.5, 5, 6, 7, 8, 9, 10, 11, None]
    unfinished = run_folder(tmp_path / "other", spec(rounds=4), done=2)
    (unfinished / "clients.json").write_text((folder / "clients.json").read_text())
    layouts = [figure["layout"] for figure in report(unfinished, tmp_path / "b.html").figures]
    assert not any("training samples" in json.dumps(layout) for layout in layouts)
