"""Growth: one size at a time, every point in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedmix import BadInput
from fedmix.bench import scale
from fedmix.bench.plot import draw_growth
from fedmix.bench.scale import AXES, Growth, Point, measure, points, sweep

TINY = Point(clients=2, population=4, steps=1, width=3)


@pytest.mark.parametrize("axis", AXES)
def test_an_axis_changes_one_size_and_grows(axis: str) -> None:
    values = [value for value, _ in points(axis)]
    assert values == sorted(set(values))
    for value, point in points(axis):
        assert point._asdict() == Point()._asdict() | {axis: value}
        assert point.clients <= point.population


def test_a_point_has_the_size_it_says() -> None:
    built = scale.federation(TINY, "fedmix", "cpu")
    assert len(built.data.clients) == 4
    assert built.training.clients_per_round == 2
    assert {built.training.steps(n) for n in built.data.clients.sizes.tolist()} == {1}
    done = measure(TINY, "fedmix", "cpu", repeats=3)
    assert done.parameters == 784 * 3 + 3 + 3 * 10 + 10
    assert 0 < done.low <= done.seconds <= done.high
    assert done.setup_s > 0
    assert done.repeats == 3


def test_many_clients_hold_rows_of_one_small_array() -> None:
    built = scale.federation(TINY._replace(population=50_000), "fedavg", "cpu")
    assert len(built.data.x) == scale.ROWS
    assert len(built.data.clients) == 50_000


def test_points_are_measured_apart_and_the_limit_ends_an_axis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(AXES, "width", (2, 4, 8))
    said: list[str] = []
    first, note = sweep(["width"], ["fedavg"], "cpu", 1, limit=1e-6, listen=said.append)
    assert isinstance(first, Growth)
    assert (first.axis, first.value, first.algorithm) == ("width", 2, "fedavg")
    assert note == "fedavg, width of the model: ended at 2, which took over 1e-06 s (--limit)"
    assert said == ["fedavg, width of the model: 2"]


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("os.kill(os.getpid(), 9)", "its process was killed, perhaps for lack of memory"),
        ("raise RuntimeError('the net is too wide')", "RuntimeError: the net is too wide"),
    ],
)
def test_a_process_that_dies_ends_its_axis_only(
    ending: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport os\n{ending}\n")
    python.chmod(0o700)
    monkeypatch.setattr("fedmix.bench.scale.sys.executable", str(python))
    notes = list(sweep(["steps", "width"], ["fedavg"], "cpu", 1, 60))
    assert notes == [
        f"fedavg, steps per client: ended before 1: {said}",
        f"fedavg, width of the model: ended before 16: {said}",
    ]


def test_bad_input_in_the_other_process_is_bad_input_here() -> None:
    with pytest.raises(BadInput, match="device 'tpu' cannot be used"):
        list(sweep(["width"], ["fedavg"], "tpu", 1, 60))


def test_bad_input() -> None:
    with pytest.raises(
        BadInput, match="axis 'depth' is unknown; choose among clients, population, steps, width"
    ):
        points("depth")
    with pytest.raises(BadInput, match="--repeats 0"):
        list(sweep(["width"], ["fedavg"], "cpu", 0, 60))
    with pytest.raises(BadInput, match="--limit nan"):
        list(sweep(["width"], ["fedavg"], "cpu", 1, float("nan")))


def test_the_peak_of_memory_grows_with_what_is_held() -> None:
    """In a process of its own: in this one the peak may lie far above what is held now."""
    code = """
from fedmix.bench.scale import peak_memory
before = peak_memory()
held = bytearray(b"x") * (64 << 20)
assert peak_memory() - before > 32 << 20, peak_memory() - before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_curves_are_drawn(tmp_path: Path) -> None:
    grown = [
        Growth(axis, value, algorithm, value / 100, value / 200, value / 50, 1.0, 10.0 * value, 100)
        for axis in ("clients", "width")
        for algorithm in ("fedavg", "fedmix")
        for value in (1, 10, 100)
    ]
    draw_growth(grown, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "<svg" in text
    assert text.count("<!-- clients per round -->") == 1
    with pytest.raises(BadInput, match=r"\.png or \.svg"):
        draw_growth(grown, tmp_path / "a.pdf")
