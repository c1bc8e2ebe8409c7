"""Run folders are found, read within limits, and met with one sentence where they are damaged."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmix.core.errors import BadInput
from fedmix.report import draw, files, load_runs, results_of, write_html
from fedmix.report.groups import grouped
from tests.report.folders import metrics, run_folder, spec, study, write_lines


def test_runs_are_found_up_to_two_levels_deep_and_each_once(tmp_path: Path) -> None:
    near, far = (
        run_folder(tmp_path / name, spec(seed=i)) for i, name in enumerate(("near", "sweep/far"))
    )
    run_folder(tmp_path / "a/b/too-far", spec(seed=2))
    assert [run.folder for run in load_runs([tmp_path, near])] == [near, far]


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_folder_without_runs_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=rf"{folder} .*give a folder"):
        load_runs([tmp_path / folder])
    with pytest.raises(BadInput, match="no run folders were given"):
        load_runs([])


def test_folders_may_be_text_and_one_by_itself(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs" / "a", spec())
    every = [load_runs(f"{tmp_path}/runs"), load_runs(tmp_path), load_runs([f"{tmp_path}/runs/a"])]
    assert [[run.folder for run in runs] for runs in every] == [[tmp_path / "runs" / "a"]] * 3
    write_html(every[0], f"{tmp_path}/page.html")
    draw(every[0], f"{tmp_path}/curves.svg")
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "curves.svg").exists()


def test_runs_on_other_numbers_of_processes_are_runs_of_one_group(tmp_path: Path) -> None:
    for seed, engine in enumerate(({}, {"processes": 1}, {"processes": 4})):
        run_folder(tmp_path / str(seed), spec(seed=seed, engine=engine))
    [group] = grouped(load_runs([tmp_path]))
    assert (group.label, [run.seed for run in group.runs]) == ("fedmix", ["0", "1", "2"])


def test_a_torn_last_line_is_ignored(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", spec(rounds=5), done=3)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "accur')
    [run] = load_runs([folder])
    assert run.rounds == 3
    assert not run.finished


def test_a_run_that_was_given_more_rounds_is_unfinished(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", spec(rounds=5))
    write_lines(folder, metrics(spec(rounds=5))[:4])
    assert (folder / "summary.json").exists()
    assert not load_runs([folder])[0].finished


def damage(name: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(
        content.encode() if isinstance(content, str) else content
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            damage("metrics.jsonl", '{"round": 1}\nnonsense\n{"round": 3}\n'),
            r"metrics\.jsonl, line 2, is not valid JSON",
        ),
        (
            damage("metrics.jsonl", '{"round": 2}\n{"round": 2}\n'),
            r"line 2: round 2 comes after round 2",
        ),
        (
            damage("metrics.jsonl", '{"round": 1, "seconds": "long"}\n'),
            r"line 1: seconds is not a number",
        ),
        (damage("metrics.jsonl", "[1]\n[2]\n"), r"line 1, is not an object with a round"),
        (
            damage("metrics.jsonl", '{"round": 1}\n' + "[" * 100_000 + '\n{"round": 2}\n'),
            r"line 2, is not valid JSON",
        ),
        (damage("summary.json", "[]"), r"summary\.json does not hold a JSON object"),
        (damage("summary.json", "{}"), r"summary\.json does not hold the scores of a run"),
        (
            damage("summary.json", "[" * 100_000),
            r"summary\.json is not valid JSON \(nested too deeply\)",
        ),
        (damage("environment.json", b"\xff\xfe{"), r"environment\.json is not valid JSON"),
        (damage("experiment.toml", "seed = "), r"experiment\.toml is not valid TOML"),
        (damage("experiment.toml", 'target = "high"'), r"target is not a number"),
        (
            damage("clients.json", '{"classes": 2, "sizes": [3], "counts": [[1, 1, 1]]}'),
            r"one row per client",
        ),
        (
            damage("clients.json", '{"classes": 2, "sizes": [-3], "counts": []}'),
            r"sizes are not numbers of samples",
        ),
        (
            damage("clients.json", '{"classes": 2, "sizes": [3], "counts": [[1], [2, 3]]}'),
            r"counts are not numbers of samples",
        ),
        (
            damage("clients.json", '{"sizes": [3, 4], "scores": [0.5]}'),
            r"scores are not one number per client",
        ),
        (
            damage("clients.json", '{"sizes": [3, 4], "scores": [0.5, "high"]}'),
            r"scores are not one number per client",
        ),
        (damage("gallery.safetensors", b"\x80\x04pickle"), r"gallery\.safetensors is damaged"),
    ],
)
def test_damage_is_named_by_file_and_place(
    tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    folder = run_folder(tmp_path / "run", spec(rounds=3))
    spoil(folder)
    with pytest.raises(BadInput, match=said) as caught:
        load_runs([folder])
    assert "\n" not in str(caught.value)


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path / "run", spec(rounds=3))
    monkeypatch.setattr(files, "LARGEST", 100)
    with pytest.raises(BadInput, match="larger than"):
        load_runs([folder])


def test_runs_that_measure_different_things_are_reported_apart(tmp_path: Path) -> None:
    run_folder(tmp_path / "a", spec(rounds=2))
    write_lines(
        run_folder(tmp_path / "b", spec(seed=1, rounds=2)),
        [{"round": 1, "mse": 2.0}, {"round": 2, "mse": 1.0}],
    )
    with pytest.raises(BadInput, match=r"accuracy in .*a and mse in .*b"):
        load_runs([tmp_path])


def test_a_diverged_run_does_not_look_like_a_good_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", spec(rounds=3))
    write_lines(
        folder, [{"round": 1, "mse": 2.0}, {"round": 2, "mse": 5.0}, {"round": 3, "mse": math.nan}]
    )
    [row] = results_of(load_runs([folder])).rows
    assert row.last.text() == "not finite"
    assert row.best.mean == 2.0


def test_runs_that_differ_only_in_seed_form_a_group(tmp_path: Path) -> None:
    study(tmp_path, rounds=2)
    run_folder(tmp_path / "other", spec("fedmix", 0, 2, objective={"lam": 0.2}))
    run_folder(tmp_path / "tenth", spec("fedmix", 10, 2))
    groups = grouped(load_runs([tmp_path]))
    assert [group.label for group in groups] == [
        "fedavg",
        "fedmix λ=0.05",
        "fedmix λ=0.2",
        "naivemix",
    ]
    assert [run.seed for run in groups[1].runs] == ["0", "1", "2", "10"]


def test_a_label_says_what_is_unusual(tmp_path: Path) -> None:
    """M = 1 and σ = 0.1 have two of three each."""
    for i, (m, noise) in enumerate(((1, 0.0), (1, 0.1), ("all", 0.1))):
        run_folder(tmp_path / str(i), spec(rounds=1, exchange={"m": m, "noise": noise}))
    assert [group.label for group in grouped(load_runs([tmp_path]))] == [
        "fedmix",
        "fedmix M=all",
        "fedmix σ=0.0",
    ]


def test_of_settings_that_vary_together_a_label_has_the_one_that_is_the_point(
    tmp_path: Path,
) -> None:
    """M before the cut-off that is set with it, and a data set's name before its λ."""
    for i, (data, lam, m) in enumerate(
        (("digits", 0.1, 5), ("digits", 0.1, 20), ("cifar10", 0.2, 5), ("cifar10", 0.2, 20))
    ):
        settings = spec(
            rounds=1, data={"name": data}, objective={"lam": lam}, exchange={"m": m, "cutoff": m}
        )
        run_folder(tmp_path / str(i), settings)
    found = [group.label for group in grouped(load_runs([tmp_path]))]
    assert found == [
        "fedmix cifar10 M=5",
        "fedmix cifar10 M=20",
        "fedmix digits M=5",
        "fedmix digits M=20",
    ]


def test_a_group_has_the_name_that_its_algorithm_has_on_the_command_line(tmp_path: Path) -> None:
    variants: list[tuple[str, dict[str, Any]]] = [
        ("fedavg", {"objective": {"mu": 0.0}}),
        ("fedavg", {"objective": {"mu": 0.1}}),
        ("naivemix", {"exchange": {"source": "noise"}}),
        ("naivemix", {"exchange": {"source": "pool"}}),
        ("naivemix", {"objective": {"layer": 2}}),
    ]
    for i, (name, sections) in enumerate(variants):
        run_folder(tmp_path / str(i), spec(name, rounds=1, **sections))
    names = ["fedavg", "fedprox", "hidden-naivemix", "naivemix", "randommix"]
    assert [group.label for group in grouped(load_runs([tmp_path]))] == names


def test_control_characters_do_not_reach_a_terminal(tmp_path: Path) -> None:
    folder = run_folder(
        tmp_path / "run", spec(rounds=1, objective={"name": "fedmix"}, data={"name": "a\x1b[2Jb"})
    )
    assert "\x1b" not in json.dumps(dict(load_runs([folder])[0].settings), ensure_ascii=False)


def test_pictures_are_cut_to_the_range_of_a_pixel(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = run_folder(tmp_path / "run", spec(rounds=1))
    noisy = np.array([[[[-1.0, 0.5], [np.nan, 9.0]]]], np.float32)
    save_file({"means": noisy, "samples": noisy}, folder / "gallery.safetensors")
    gallery = load_runs([folder])[0].gallery
    assert gallery is not None
    np.testing.assert_array_equal(gallery.means[0, 0], [[0, 0.5], [0, 1]])
