"""`fedmix audit` as a user types it: words, tables, JSON and a page."""

import contextlib
import io
import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fedmix.core.errors import BadInput
from fedmix.data import FederatedData, HeldOut, Ragged
from fedmix.data.transforms import OneHot
from fedmix.experiment.presets import experiment
from fedmix.privacy.audit.findings import findings
from fedmix.privacy.audit.grid import Grid, Noise, audit, steps
from tests.report.test_page import Reader
from tests.test_cli import fedmix

SMALL = ["--set", "data.clients=10"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, str]:
    """What it prints as JSON, its page, and its messages."""
    out, err, path = io.StringIO(), io.StringIO(), tmp_path_factory.mktemp("audit") / "audit.html"
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        args = [
            "--m",
            "1,all",
            "--sigma",
            "0",
            "--epsilon",
            "1",
            "--clip",
            "4",
            "--delta",
            "1e-4",
            "--json",
            "--html",
            path,
        ]
        assert fedmix(patch, "audit", "digits", *SMALL, *args) == 0
    return json.loads(out.getvalue()), path.read_text("utf-8"), err.getvalue()


def test_json_holds_every_setting_with_its_guarantee(
    written: tuple[dict[str, Any], str, str],
) -> None:
    result, _, err = written
    assert "wrote" in err
    assert [(c["m"], c["epsilon"] is None) for c in result["cells"]] == [
        (1, True),
        (1, False),
        ("all", True),
        ("all", False),
    ]
    raw, private = result["cells"][0], result["cells"][1]
    assert raw["membership"]["server"]["auc"] > 0.999
    assert raw["reconstruction"]["blind"]["psnr"] > 60
    assert private["epsilon"] == pytest.approx(1, rel=0.01)
    assert private["neighbours"]["epsilon"] < 1
    mu = (
        math.sqrt(2) * 4 / private["exchange"]["noise"]
    )  # δ of ε = 1 is that of two normals so far apart (Balle & Wang 2018)
    assert norm.cdf(mu / 2 - 1 / mu) - math.e * norm.cdf(-mu / 2 - 1 / mu) == pytest.approx(
        1e-4, rel=0.01
    )
    assert private["membership"]["server"]["auc"] < 0.6
    assert [d["changed"] for d in raw["differencing"]] == [
        1,
        1,
        3,
        3,
    ]  # a quarter of ten clients, and then some
    assert result["command"].startswith(
        "fedmix audit digits --m 1,all --sigma 0 --epsilon 1 --clip 4.0 --average 4 --wait 0.25 "
        "--delta 0.0001"
    )
    assert len(result["findings"]) == 6


def test_the_page_has_words_first_and_asks_for_nothing(
    written: tuple[dict[str, Any], str, str],
) -> None:
    result, text, _ = written
    page = Reader(text)
    headings = [i for i, (tag, _) in enumerate(page.elements) if tag == "h2"]
    tables = [i for i, (tag, _) in enumerate(page.elements) if tag == "table"]
    assert headings[0] < headings[1] < tables[0]
    assert all(f["title"] in text for f in result["findings"])
    assert not page.scripts
    asked = [a[name] for _, a in page.elements for name in ("src", "href") if a.get(name)]
    assert all(address and address.startswith(("data:image/png;base64,", "#")) for address in asked)
    assert sum(tag == "img" for tag, _ in page.elements) == 4 * 5 * (5 + 4)


def test_seeds_are_put_together_and_every_step_is_announced() -> None:
    heard: list[str] = []
    grid = Grid(sizes=(20,), noises=(Noise(0.1),), suspects=50, trials=200, means=2, victims=2)
    [cell] = audit(
        lambda seed: experiment("digits", seed=seed).build_data(), [3, 4], grid, heard.append
    )
    assert len(heard) == steps(2, grid) == 4
    assert (cell.server.members, cell.neighbours.rates.members, cell.reconstruction.attempts) == (
        100,
        200,
        2,
    )
    assert cell.guarantee.reason
    assert (
        findings([cell], grid)[0].leaked.count("M = 20") == 1
    )  # its smallest and its largest M are one


def test_the_terminal_says_what_leaked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedmix(monkeypatch, "audit", "digits", *SMALL, "--m", "all", "--quiet") == 0
    out, err = capsys.readouterr()
    assert err == ""
    for word in (
        "Was this sample among those averaged?",
        "M = all, no noise",
        "ε shown",
        "Unseen",
        "proves nothing",
    ):
        assert word in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["shakespeare"], "shakespeare holds no pictures"),
        (["--m", "1,ten"], "--m 'ten'"),
        (["--m", "0"], "exchange.m=0"),
        (["--sigma", "-1"], "exchange.noise=-1.0"),
        (["--sigma", "much"], "--sigma 'much'"),
        (["--sigma", ","], "--sigma is empty"),
        (["--epsilon", "1"], "--clip"),
        (["--delta", "0"], "delta=0.0 must lie between 0 and 1"),
        (["--m", "2000"], "M = 2000: no client of digits has so many samples, the largest has 74"),
        (["--set", "exchange.m=3"], "--set exchange.m: an audit varies it; use --m"),
        (["--set", "exchange.source=own"], "exchange.source='own'"),
        (["--set", "exchange.noise=0.1"], "use --sigma"),
        (["--set", "exchange.clip=1,2"], "one exchange"),
        (["--html", "missing/audit.html"], "no folder missing"),
        (["--average", "0"], "exchange.average=0"),
        (["--average", "1"], "from 2 on"),
        (["--wait", "2"], "exchange.wait=2"),
    ],
)
def test_mistakes_are_named(
    args: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedmix(monkeypatch, "audit", *args, "--quiet") == 2
    assert said in capsys.readouterr().err


def test_a_mean_larger_than_every_client_is_refused_before_any_work() -> None:
    heard: list[str] = []
    with pytest.raises(BadInput, match="M = 9999: no client of digits has so many samples"):
        list(
            audit(
                lambda seed: experiment("digits", seed=seed).build_data(),
                [0],
                Grid(sizes=(1, 9999)),
                heard.append,
            )
        )
    assert heard == []


def test_data_without_pictures_is_refused() -> None:
    x, y = np.zeros((8, 9), np.int64), np.zeros(8, np.int64)
    text = FederatedData(
        x, y, Ragged.of([range(4), range(4, 8)]), HeldOut(x, y), 2, OneHot(5), name="text"
    )
    with pytest.raises(BadInput, match="text holds no pictures"):
        list(audit(lambda _: text, [0], Grid(), lambda _: None))
