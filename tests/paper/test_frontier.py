"""The frontier's noise, and the page whose tables come from the file of all runs."""

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmix.core.rng import stream
from fedmix.data.partition import share, spread
from fedmix.paper import STUDIES, TABLES
from fedmix.paper.frontier import SAMPLES
from fedmix.privacy import guarantee

ROOT = Path(__file__).parents[2]
FRONTIER = STUDIES["frontier"]
RESULTS = ROOT / "docs" / "results" / "beyond.jsonl"


@pytest.fixture(scope="module")
def beyond() -> Any:
    spec = importlib.util.spec_from_file_location("beyond", ROOT / "benchmarks" / "beyond.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("row", ["drawn-all", "dim-5", "naivemix-20"])
def test_noise_gives_the_columns_guarantee(row: str) -> None:
    """Not more ε than the column says, and hardly less: noise is rounded up to four digits."""
    assert "frontier" not in TABLES
    for column in ("1", "30", "3000"):
        how = FRONTIER.experiment(row, column).build_exchange()
        assert how is not None
        group = SAMPLES if how.m == "all" else int(how.m)
        epsilon = guarantee(how, group, nonnegative=True).epsilon
        assert 0.99 * float(column) < epsilon <= float(column)
    plain = FRONTIER.experiment(row, "none").build_exchange()
    assert plain is not None
    assert plain.noises == (0.0, 0.0)


def test_noise_by_hand() -> None:
    """For ε = 1 and δ = 1e-5 a normal mechanism needs σ = 3.7306 of the sensitivity (Balle & Wang
    2018). Half of μ² for labels makes it √2 times that. Images of norm 30 in means of 20 differ by
    √2 · 30 / 20, labels by √2 / 20.
    """
    how = FRONTIER.experiment("naivemix-20", "1").build_exchange()
    assert how is not None
    assert how.noise == pytest.approx(3.7306 * math.sqrt(2) * math.sqrt(2) * 30 / 20, rel=1e-3)
    assert how.label_noise == pytest.approx(3.7306 * 2 / 20, rel=1e-3)


def test_a_heads_noise_by_hand() -> None:
    """As above for ε = 1; a sample of 250 moves a client's means by 2√3 / 250 at most."""
    for row in ("head", "head-normalised"):
        head = FRONTIER.experiment(row, "1").build_head()
        assert head is not None
        assert (head.clip, head.since) == (11.0, 60)
        assert head.noise == pytest.approx(3.7306 * 2 * math.sqrt(3) / 250, rel=1e-3)
        plain = FRONTIER.experiment(row, "none").build_head()
        assert plain is not None
        assert plain.noise == 0


def test_the_audit_is_of_the_frontiers_exchanges(beyond: Any) -> None:
    """Its rows and columns are there, and λ does not change what is exchanged."""
    for use, sizes in beyond.AUDITED.items():
        for size in sizes:
            for column in beyond.TRIED:
                assert FRONTIER.experiment(f"{use}-{size}", column).build_exchange() is not None
    drawn, fixed = (FRONTIER.experiment(f"{use}-20", "10") for use in ("drawn", "naivemix"))
    assert drawn.build_exchange() == fixed.build_exchange()


def test_every_client_has_so_many_samples() -> None:
    """With CIFAR-10's 5,000 images of each class: a smaller client would have less protection."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    for seed in range(5):
        data = FRONTIER.experiment("drawn-all", "1", seed).data
        dealt = spread(
            labels,
            data.clients,
            data.partition,
            data.classes_per_client,
            data.alpha,
            stream(seed, "partition"),
        )
        sizes = share(dealt, data.local_share, stream(seed, "share")).sizes
        assert sizes.min() == SAMPLES


def test_lines_name_experiments() -> None:
    """A sample of them: the name of a run is a hash of its settings."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    machines = {line["name"]: line for line in lines if "name" in line}
    runs = [line for line in lines if "study" in line]
    assert len({line["run"] + line["on"] for line in runs}) == len(runs)
    for line in runs[::40]:
        run = STUDIES[line["study"]].experiment(line["row"], line["column"], line["seed"])
        assert (
            run.with_settings({"engine.device": machines[line["on"]]["device"]}).id == line["run"]
        )


def test_a_table_by_hand(beyond: Any, tmp_path: Path) -> None:
    """Seeds 0 to 4 of FedAvg: mean 42, deviation √2.5; M = 5 is 3, 4, 5, 4, 4 above: t = 4·√10."""
    lines: list[dict[str, Any]] = [{"name": "here", "device": "cpu"}]
    for seed, (plain, more) in enumerate(zip((40, 41, 42, 43, 44), (3, 4, 5, 4, 4), strict=True)):
        for row, score in (("fedavg", plain), ("drawn-5", plain + more)):
            lines.append({
                "study": "beyond", "column": "digits", "row": row, "seed": seed, "score": score,
                "run": "x", "on": "here",
            })  # fmt: skip
    lines.append(lines[1] | {"row": "fedrs", "seed": 0, "score": None, "diverged": 7})
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = beyond.read(file)
    cell = beyond.cell(store, "digits", "fedavg")
    assert beyond.text(cell) == "42.0 ± 1.6"
    assert beyond.text(beyond.cell(store, "digits", "fedrs")) == "diverged in round 7 (1)"
    [tested] = [d for d in beyond.claims(store) if d.test() is not None]
    low, high, p = tested.test()
    half = 2.7764451 * math.sqrt(0.5) / math.sqrt(5)  # the 97.5 % point of t with 4
    assert (low, high) == (pytest.approx(4 - half), pytest.approx(4 + half))
    # P(|t| > t0) with 4 degrees of freedom, in closed form
    t = 4 / math.sqrt(0.5 / 5)
    x = t / math.sqrt(4 + t * t)
    assert p == pytest.approx(1 - x * (3 - x * x) / 2, rel=1e-3)
