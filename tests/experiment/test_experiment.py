"""The spec: round trips, names, and refuses what is wrong with a path, a value and the nearest
right key.
"""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmix import BadInput, Experiment
from fedmix.core.registry import ALGORITHMS
from fedmix.experiment.presets import PRESETS, experiment
from fedmix.experiment.spec import settings

BASE: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "digits_cnn"},
    "objective": {"name": "fedmix", "lam": 0.1},
    "training": {"clients_per_round": 5},
}


@pytest.mark.parametrize("module", ["experiment.spec", "experiment.values", "runs.trackers"])
def test_without_its_packages_a_sentence_says_what_to_install(module: str) -> None:
    code = f"import sys; sys.modules['pydantic'] = None; import fedmix.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: fedmix.experiment needs pydantic; run: pip install 'fedmix[cli]'"
    )


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "hidden-fedmix", "naivemix+prox"])
@pytest.mark.parametrize("name", PRESETS)
def test_presets_round_trip(name: str, algorithm: str) -> None:
    spec = experiment(name, algorithm, seed=3)
    assert Experiment.of(tomllib.loads(spec.toml())) == spec


@given(
    lam=st.floats(0, 1),
    m=st.one_of(st.integers(1, 10**6), st.floats(0.001, 0.999), st.just("all")),
    noise=st.floats(0, 1e6),
    seed=st.integers(0, 2**62),
    alpha=st.none() | st.floats(0.01, 100),
    widths=st.lists(st.integers(1, 999), min_size=1, max_size=6),
)
def test_any_values_round_trip(
    lam: float, m: Any, noise: float, seed: int, alpha: float | None, widths: list[int]
) -> None:
    data = (
        {"name": "cifar10", "partition": "dirichlet", "alpha": alpha}
        if alpha
        else {"name": "cifar10"}
    )
    values = BASE | {
        "data": data,
        "objective": {"name": "fedmix", "lam": lam},
        "exchange": {"m": m, "noise": noise},
        "seed": seed,
    }
    spec = Experiment.of(values | {"model": {"name": "vgg", "widths": widths}})
    again = Experiment.of(tomllib.loads(spec.toml()))
    assert again == spec
    assert again.id == spec.id


def test_the_name_follows_every_setting() -> None:
    spec = Experiment.of(BASE)
    others = [
        spec.with_settings({path: value})
        for path, value in {
            "seed": 1,
            "rounds": 41,
            "objective.lam": 0.2,
            "objective.mu": 0.1,
            "training.lr": 0.02,
            "data.clients": 19,
        }.items()
    ]
    assert len({spec.id, *(o.id for o in others)}) == 7
    assert spec.id.startswith("digits-fedmix-s0-")
    assert Experiment.of(BASE).id == spec.id


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            "objective.lamb",
            0.1,
            r"objective\.lamb=0\.1 is not a setting; did you mean objective\.lam\?",
        ),
        ("data.clinets", 3, r"data\.clinets=3 is not a setting; did you mean data\.clients\?"),
        (
            "exchange.nosie",
            3,
            r"exchange\.nosie=3 is not a setting; did you mean exchange\.noise\?",
        ),
        (
            "engine.devise",
            "cpu",
            r"engine\.devise='cpu' is not a setting; did you mean engine\.device\?",
        ),
        ("trainig", {}, r"trainig=\{\} is not a setting; did you mean training\?"),
        ("foo.bar", 3, r"foo\.bar=3 is not a setting; known are data, model, objective"),
        ("foo.bar.baz", 3, r"foo\.bar\.baz=3 is not a setting; known are data, model, objective"),
        ("trainig.lr", 3, r"trainig\.lr=3 is not a setting; did you mean training\.lr\?"),
        ("objectiv.lam", 3, r"objectiv\.lam=3 is not a setting; did you mean objective\.lam\?"),
        ("training.lr_decay.x", 3, r"training\.lr_decay\.x: lr_decay is a value, not a section"),
        (
            "training.decay.x",
            3,
            r"training\.decay\.x=3 is not a setting; did you mean training\.lr_decay\?",
        ),
        ("round", 3, r"round=3 is not a setting; did you mean rounds\?"),
        ("data.xyzzy", 3, r"data\.xyzzy=3 is not a setting; known are clients, partition"),
        (
            "data.name",
            "digit",
            r"data\.name='digit' is unknown; did you mean digits\? Known are cifar10",
        ),
        (
            "exchange.m",
            "some",
            r"exchange\.m='some' should be a valid integer, a valid number or 'all'",
        ),
        ("training.epochs", "five", r"training\.epochs='five' should be a valid integer"),
        ("training.epochs", 0, r"training\.epochs=0 must be at least 1"),
        ("training.momentum", 1.0, r"training\.momentum=1\.0 is outside \[0, 1\)"),
        ("data.clients", 2.5, r"data\.clients=2\.5 should be a valid integer"),
        ("data.clients", 0, r"data\.clients=0 must be at least 1"),
        (
            "data.partition",
            "wild",
            r"data\.partition='wild' should be 'classes', 'random-classes', 'shards'",
        ),
        ("data.partition", "dirichlet", r"partition 'dirichlet' needs `alpha`"),
        ("data.alpha", 0.5, r"partition 'classes' does not use `alpha`; leave it out"),
        ("data.test_share", 1.0, r"data\.test_share=1\.0 must lie between 0 and 1"),
        ("data.local_share", 0.0, r"a share of 0\.0 of the local data"),
        ("objective.lam", 1.5, r"lam=1\.5 is outside \[0, 1\]"),
        ("objective.lam", "x", r"objective\.lam='x' should be a valid number"),
        ("objective.mu", -1.0, r"objective\.mu=-1\.0 should be greater than or equal to 0"),
        ("exchange.m", 0, r"exchange\.m=0: M_k must be at least 1"),
        ("engine.name", "vec", r"engine\.name='vec' should be 'vectorised' or 'sequential'"),
        ("rounds", 0, r"rounds=0 should be greater than or equal to 1"),
        ("seed", -1, r"seed=-1 should be greater than or equal to 0"),
        ("seed.x", 1, r"seed\.x: seed is a value, not a section"),
    ],
)
def test_mistakes_are_named(path: str, value: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Experiment.of(BASE).with_settings({path: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objective": {"name": "fedmix"}}, r"FedMix: give either alpha .* or a fixed lam"),
        ({"objective": {}}, r"objective\.name is missing"),
        (
            {"objective": {"name": "fedavg"}, "exchange": {}},
            r"\[exchange\] is set, but fedavg uses no means",
        ),
        (
            {"objective": {"name": "fedavg", "layer": 2}},
            r"objective\.layer=2, but fedavg mixes nothing",
        ),
        ({"objective": {"name": "localmix"}}, r"LocalMix: give either alpha"),
        (
            {"objective": {"name": "fedmix", "lam": 0.1, "expand": "logits", "scale": "algorithm"}},
            "leave scale out",
        ),
        ({"data": 3}, r"data=3"),
    ],
)
def test_impossible_combinations(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Experiment.of(BASE | change)


def test_a_model_that_cannot_be_built() -> None:
    values = BASE | {"data": {"name": "diabetes"}, "model": {"name": "mlp", "hidden": -1}}
    with pytest.raises(BadInput, match=r"\[model\] \{'hidden': -1\} cannot be built"):
        Experiment.of(values).federation()


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.toml cannot be read \(No such file or directory\)"):
        Experiment.load(tmp_path / "gone.toml")
    (tmp_path / "torn.toml").write_text("[data\nname=")
    with pytest.raises(BadInput, match=r"torn\.toml is not valid TOML: .*line 1"):
        Experiment.load(tmp_path / "torn.toml")
    (tmp_path / "huge.toml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        Experiment.load(tmp_path / "huge.toml")
    (tmp_path / "latin.toml").write_bytes(b"x = '\xff'")
    with pytest.raises(BadInput, match="is not valid TOML"):
        Experiment.load(tmp_path / "latin.toml")


def test_every_setting_is_listed() -> None:
    listed = {(path, of) for path, _, _, of in settings()}
    assert {
        ("objective.lam", "fedmix"),
        ("data.alpha", "cifar10"),
        ("exchange.wait", ""),
        ("training.momentum", ""),
        ("seed", ""),
    } <= listed
    assert ("engine.name", "") in listed
    assert all(text and "typing" not in text for _, text, _, _ in settings())
