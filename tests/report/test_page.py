"""The page holds everything, asks for nothing, and draws in a real browser."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedmix.core.errors import BadInput
from fedmix.report import load_runs, write_html
from fedmix.report.baseline import against
from fedmix.report.groups import grouped
from fedmix.report.sweeps import sweeps
from tests.report.chromium import BROWSER, Page, chromium
from tests.report.folders import run_folder, scored, spec, study, write_lines

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
    def facts(self) -> dict[str, Any]:
        """What the page gives its script."""
        return dict(json.loads(self.scripts[0]))


def report(folder: Path, path: Path, **options: str) -> Reader:
    write_html(load_runs([folder]), path, **options)  # type: ignore[arg-type]
    return Reader(path.read_text("utf-8"))


def chart(path: Path, title: str) -> ElementTree.Element:
    """The drawing of a chart in a page."""
    found = re.search(
        rf'aria-label="{re.escape(title)}"><svg[^>]*>.*?</svg></div>', path.read_text("utf-8")
    )
    assert found
    return ElementTree.fromstring(found[0].partition(">")[2].removesuffix("</div>"))


def points(drawing: ElementTree.Element, number: int) -> list[list[tuple[float, float]]]:
    """The points of a line in units of its axes: a list for each part without a gap."""
    [area] = drawing.findall("svg")
    (x0, x1), (y0, y1) = (map(float, area.attrib[f"data-{a}"].split()[:2]) for a in "xy")
    [line] = area.findall(f"g[@class='series k{number}']/path[@class='line']")
    x, y, parts = 0.0, 0.0, list[list[tuple[float, float]]]()
    for kind, dx, dy in re.findall(r"([ml])(-?\d+) ?(-?\d+)", line.attrib["d"]):
        x, y = x + float(dx), y + float(dy)
        parts += [[]] if kind == "m" else []
        across, up = x / float(area.attrib["width"]), 1 - y / float(area.attrib["height"])
        parts[-1].append((x0 + across * (x1 - x0), y0 + up * (y1 - y0)))
    return parts


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


def test_all_is_in_the_page_and_nothing_is_asked_for(written: Path) -> None:
    page = Reader(written.read_text("utf-8"))
    assert len(page.scripts) == 2
    asked = [a[name] for _, a in page.elements for name in ("src", "href") if a.get(name)]
    assert asked
    assert all(address and address.startswith(("data:image/png;base64,", "#")) for address in asked)
    assert written.stat().st_size < 120_000


def test_a_curve_is_the_mean_over_seeds(written: Path, tmp_path: Path) -> None:
    """A unit of a drawing is 1 / 520 of its height; here axes go from 0 to 100 % in 40 rounds."""
    runs = [run for run in load_runs([written.parent / "runs"]) if run.algorithm == "naivemix"]
    mean = 100 * np.mean([run.metrics["accuracy"] for run in runs], 0)
    study(tmp_path / "runs")
    report(tmp_path / "runs", tmp_path / "a.html")
    [line] = points(chart(tmp_path / "a.html", "Accuracy by round"), 2)
    np.testing.assert_allclose([x for x, _ in line], range(1, 41), atol=0.03)
    np.testing.assert_allclose([y for _, y in line], mean, atol=0.1)


def test_hostile_text_stays_text(written: Path) -> None:
    text = written.read_text("utf-8")
    page = Reader(text)
    assert "<script>window.hacked" not in text
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert all(tag != "img" or (a["src"] or "").startswith("data:") for tag, a in page.elements)
    assert not re.search(r"[<>]", page.scripts[0])


def test_the_page_says_what_the_runs_said(written: Path) -> None:
    text = written.read_text("utf-8")
    for said in (
        "fedmix run digits --algorithm naivemix --seed 2 --rounds 40 --out runs",
        "unfinished</strong> after 23 of 40 rounds",
        "No formal guarantee: means of m=all samples with no noise.",
        "Not stated: a run states it after its last round.",
        "What M = 1 would have sent",
        "<dt>training.lr</dt><dd>0.01</dd>",
    ):
        assert said in text


def test_many_clients_are_cut_and_it_is_said(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", spec(rounds=2, data={"clients": 130}))
    report(tmp_path / "run", tmp_path / "a.html")
    assert "The first 100 of 130 clients are shown." in (tmp_path / "a.html").read_text()


def test_regression_without_classes_or_pictures(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", spec("fedavg", rounds=3))
    write_lines(
        folder, [{"round": r, "mse": 3000.0 / r, "loss": float("nan")} for r in range(1, 4)]
    )
    (folder / "clients.json").write_text(
        json.dumps({"classes": None, "sizes": [3, 5, 4], "counts": []})
    )
    report(folder, tmp_path / "a.html")
    [line] = points(chart(tmp_path / "a.html", "Mean squared error by round"), 0)
    np.testing.assert_allclose([y for _, y in line], [3000, 1500, 1000], atol=5)
    assert points(chart(tmp_path / "a.html", "Test loss by round"), 0) == []
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
    report(folder, tmp_path / "a.html")
    assert re.findall('role="img" aria-label="(.*?)"', (tmp_path / "a.html").read_text()) == [
        "Clients and classes"
    ]


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
def test_it_fits_the_window_in_chromium(
    browser: Page, written: Path, width: int, scheme: str
) -> None:
    browser.open(written, width, scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("window.hacked === undefined")
    ink = browser.evaluate("getComputedStyle(document.querySelector('.plot text')).fill")
    assert ink == {"light": "rgb(90, 98, 107)", "dark": "rgb(163, 172, 181)"}[scheme]
    assert browser.problems == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [written.as_uri()]


def test_sort_filter_compare_and_draw_in_chromium(browser: Page, tmp_path: Path) -> None:
    """Ten values of λ with the same accuracy plus λ in every round, and one seed of FedAvg."""
    for i in range(10):
        scored(tmp_path / f"runs/{i}", 0, [0.1 + i / 100] * 2, objective={"lam": i / 100})
    run_folder(tmp_path / "runs/fedavg", spec("fedavg", rounds=2))
    write_lines(tmp_path / "runs/fedavg", [{"round": r, "accuracy": 0.15} for r in (1, 2)])
    report(tmp_path / "runs", tmp_path / "a.html")
    browser.open(tmp_path / "a.html")
    shown = "[...document.querySelectorAll('tr[data-row]:not([hidden])')]"
    names = f"{shown}.map(row => row.cells[0].textContent.trim())"
    drawn = (
        "[...document.querySelectorAll('.legend.sticky li')]"
        ".filter(li => getComputedStyle(li).display !== 'none').map(li => li.textContent)"
    )
    lams = [f"fedmix λ={i / 100}" for i in range(10)]
    assert browser.evaluate(names) == ["fedavg", *lams]
    click = "document.querySelectorAll('thead button')[2].click()"  # last
    browser.evaluate(click)
    assert browser.evaluate(names)[:4] == lams[:5:-1]
    browser.evaluate(click)
    assert browser.evaluate(names)[:5] == lams[:5]
    browser.evaluate(
        "field = document.querySelector('.filter'); field.value = 'FEDMIX 0.03';"
        "field.dispatchEvent(new Event('input')); document.querySelector('.these').click()"
    )
    assert browser.evaluate(names) == browser.evaluate(drawn) == [lams[3]]
    assert browser.evaluate("document.querySelector('.count').textContent") == "1 of 11 rows"
    browser.evaluate(
        "field.value = 'Objective.name=fedmix'; field.dispatchEvent(new Event('input'))"
    )  # which no label says
    assert browser.evaluate(names) == lams
    browser.evaluate("field.value = 'λ=0.03'; field.dispatchEvent(new Event('input'))")
    difference = f"{shown}[0].querySelector('.difference').textContent"
    assert browser.evaluate(difference) == "-2.0"  # 13 % and FedAvg's 15 %
    browser.evaluate(
        "list = document.querySelector('.baseline'); list.value = '1';"
        "list.dispatchEvent(new Event('change'))"
    )
    assert browser.evaluate(difference) == "+3.0"  # 13 % and 10 %, of λ = 0
    assert browser.problems == []


def test_a_sweep_is_drawn_with_its_deviation(tmp_path: Path) -> None:
    for lam, pair in ((0.1, (0.2, 0.4)), (0.05, (0.5, 0.5)), (0.2, (0.6, 0.8))):
        for seed, score in enumerate(pair):
            scored(tmp_path / f"{lam}-{seed}", seed, [score], objective={"lam": lam})
    scored(tmp_path / "other", 0, [0.9], objective={"lam": 0.1}, training={"lr": 0.5})
    [chart] = sweeps(grouped(load_runs([tmp_path])))
    [line] = chart.legend
    assert chart.title == "Accuracy by objective.lam"
    assert chart.note.startswith("Mean of all evaluations; ")  # one of each run
    np.testing.assert_allclose(line.y, [50, 30, 70])  # for 0.05, 0.1 and 0.2
    off = 100 * math.sqrt(0.02)  # sample deviation of two numbers that are 0.2 apart
    assert line.high is not None
    np.testing.assert_allclose(line.high - line.y, [0, off, off])


def test_differences_are_by_seed_and_tested(tmp_path: Path) -> None:
    """Differences 0.1, 0.2 and 0.3: mean 0.2, t = 0.2 / (0.1 / √3) = 2√3. With two degrees of
    freedom p = 1 - t / √(2 + t²). The seed that only one has does not count, nor one that one of
    them has not finished.
    """
    ours, theirs = [0.5, 0.7, 0.9], [0.4, 0.5, 0.6]
    for seed, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        scored(tmp_path / f"a{seed}", seed, [a])
        scored(tmp_path / f"b{seed}", seed, [b], objective={"lam": 0.1})
    scored(tmp_path / "a9", 9, [0.0])
    scored(tmp_path / "a8", 8, [0.0])
    (scored(tmp_path / "b8", 8, [0.9], objective={"lam": 0.1}) / "summary.json").unlink()
    groups = grouped(load_runs([tmp_path]))
    found, itself = against(groups, groups[1])
    t = 2 * math.sqrt(3)
    assert found.mean == pytest.approx(0.2)
    assert found.seeds == 3
    assert found.tested is not None
    assert found.p == found.tested.p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert itself.mean is None
    page = report(tmp_path, tmp_path / "a.html", baseline="fedmix λ=0.1")
    [cell] = [a for _, a in page.elements if a.get("class") == "difference" and "title" in a]
    assert cell["data-value"] == "20.0"
    assert set(page.facts["against"]["data-1"]) == {"0", "1"}
    with pytest.raises(
        BadInput, match=r"no run is of 'fedmx', the baseline; did you mean fedmix\?"
    ):
        report(tmp_path, tmp_path / "a.html", baseline="fedmx")


def test_a_baseline_without_common_seeds_gives_way(tmp_path: Path) -> None:
    """FedAvg has seed 9 alone: the others are compared with the first that can be."""
    run_folder(tmp_path / "runs/a", spec("fedavg", 9, 2))
    for algorithm in ("fedmix", "naivemix"):
        run_folder(tmp_path / f"runs/{algorithm}", spec(algorithm, 0, 2))
    page = report(tmp_path / "runs", tmp_path / "a.html")
    assert set(page.facts["against"]["data-1"]) == {"1", "2"}
    assert 'Difference: from <b class="with">fedmix</b>' in (tmp_path / "a.html").read_text()


def test_many_runs_without_a_test_are_drawn_in_part(tmp_path: Path) -> None:
    """Nine settings, none tested yet: the training losses of the first eight are drawn."""
    for i in range(9):
        settings = spec(rounds=5, training={"epochs": i + 1})
        folder = run_folder(tmp_path / f"runs/{i}", settings, done=1)
        (folder / "metrics.jsonl").write_text('{"round": 1, "local_loss": 2.0}\n')
    report(tmp_path / "runs", tmp_path / "a.html")
    [shown] = re.findall(r"series:not\((.*?)\) \{", (tmp_path / "a.html").read_text())
    assert shown == ", ".join(f".k{i}" for i in range(8))


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
    report(folder, tmp_path / "a.html")
    [line] = points(
        chart(tmp_path / "a.html", "Accuracy by clients' samples".replace("'", "&#39;")), 0
    )
    np.testing.assert_allclose(
        [x for x, _ in line], [15, 35, 50, 60, 70, 80, 90, 100, 110], atol=0.1
    )
    np.testing.assert_allclose([y for _, y in line], [1.5, 3.5, 5, 6, 7, 8, 9, 10, 11], atol=0.02)
    unfinished = run_folder(tmp_path / "other", spec(rounds=4), done=2)
    (unfinished / "clients.json").write_text((folder / "clients.json").read_text())
    report(unfinished, tmp_path / "b.html")
    assert "training samples of a client" not in (tmp_path / "b.html").read_text()


@pytest.mark.parametrize(("largest", "log"), [(40, False), (400, True)])
def test_skewed_sizes_have_a_log_scale(tmp_path: Path, largest: int, log: bool) -> None:
    folder = run_folder(tmp_path / "run", spec(rounds=2))
    sizes = [10, 10, 20, 20, largest]
    counts = [[size, 0] for size in sizes]
    said = {"classes": 2, "sizes": sizes, "counts": counts, "scores": [0.5] * 5}
    (folder / "clients.json").write_text(json.dumps(said))
    report(folder, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert ("training samples of a client (log scale)" in text) == log
    assert ("Colour: samples, on a log scale" in text) == log
