"""Names that are registered: by another package, by one new file, twice, and by one that fails."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedmix import BadInput, core
from fedmix.core.registry import ALGORITHMS, DATA, MODELS, OBJECTIVES, SERVER_STEPS, Registry

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "examples" / "plugin"


def fedmix(path: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    """The command line, with another folder to import from."""
    command = [sys.executable, "-m", "fedmix", *args]
    env = os.environ | {"PYTHONPATH": str(path), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def wheel(folder: Path, source: str, entry_points: dict[str, str], name: str = "waves") -> Path:
    """A wheel of one module, as a build tool would make it."""
    about = f"fedmix_{name}-1.0.dist-info"
    points = "\n".join(f"{key} = {value}" for key, value in entry_points.items())
    contents = {
        f"fedmix_{name}.py": source,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: fedmix-{name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[fedmix]\n{points}\n",
    }
    path = folder / f"fedmix_{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for at, text in contents.items():
            file.writestr(at, text)
        file.writestr(f"{about}/RECORD", "".join(f"{at},,\n" for at in contents))
    return path


def install(wheel: Path, to: Path) -> Path:
    """Install it by pip, into a folder of its own."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(to), str(wheel)], check=True, timeout=300)
    return to


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed."""
    folder = tmp_path_factory.mktemp("plugin")
    points = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"]
    made = wheel(folder, (PLUGIN / "fedmix_waves.py").read_text(), points["fedmix"])
    return install(made, folder / "site")


def test_another_package_adds_data_model_algorithm_and_server_step(
    installed: Path, tmp_path: Path
) -> None:
    args = [
        "--algorithm",
        "smoothed",
        "--set",
        "server.name=half",
        "--out",
        str(tmp_path),
        "--json",
    ]
    done = fedmix(installed, "run", "waves", *args)
    assert done.returncode == 0, done.stderr
    [(folder, summary)] = json.loads(done.stdout).items()
    assert Path(folder).name.startswith("waves-smoothed-s0-")
    assert summary["rounds"] == 5
    spec = tomllib.loads((Path(folder) / "experiment.toml").read_text())
    assert spec["model"]["name"] == "waves_net"
    assert spec["objective"] == {"name": "smoothed", "share": 0.1, "mu": 0.0, "layer": 0}
    assert spec["server"] == {"name": "half"}
    again = fedmix(installed, "resume", folder, "--rounds", "6", "--json")
    assert json.loads(again.stdout)[folder]["rounds"] == 6


def test_lists_and_messages_name_what_another_package_adds(installed: Path) -> None:
    assert "waves        sines of three frequencies" in fedmix(installed, "data", "list").stdout
    help_ = " ".join(fedmix(installed, "run", "--help").stdout.replace("│", " ").split())
    assert "shakespeare, waves) or a file" in help_
    assert "scaffold, smoothed;" in help_
    wrong = fedmix(installed, "run", "digits", "--algorithm", "smooth")
    assert wrong.returncode == 2
    assert "scaffold, smoothed, with" in wrong.stderr


def test_a_package_that_fails_is_named_and_left_out(tmp_path: Path) -> None:
    made = wheel(tmp_path, "raise OSError('no such file')", {"bad": "fedmix_bad"}, "bad")
    done = fedmix(install(made, tmp_path / "site"), "data", "list")
    assert done.returncode == 0
    assert (
        "'fedmix_bad' could not be loaded and adds nothing (OSError: no such file)" in done.stderr
    )


def test_an_algorithm_is_a_new_file_and_changes_no_other(tmp_path: Path) -> None:
    """A copy of the source gets one file, and the command line knows what it defines."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(core.__file__).parents[1], tmp_path / "src/fedmix", ignore=ignored)
    (tmp_path / "src" / "fedmix" / "objectives" / "throwaway.py").write_text(
        '''"""Half of FedAvg's loss."""

from dataclasses import dataclass
from fedmix.objectives.algorithm import objective
from fedmix.objectives.supervised import Supervised


@objective("halved", "half of the loss")
@dataclass(frozen=True)
class Halved(Supervised):
    def __call__(self, model, params, anchor, batch):
        return super().__call__(model, params, anchor, batch) / 2
'''
    )
    args = [
        "--algorithm",
        "halved+prox",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "runs"),
        "--json",
    ]
    done = fedmix(tmp_path / "src", "run", "digits", *args)
    assert done.returncode == 0, done.stderr
    assert "digits-halved+prox-s0-" in done.stdout


def test_names_are_sorted_and_have_a_sentence() -> None:
    for registry in (ALGORITHMS, DATA, MODELS, OBJECTIVES, SERVER_STEPS):
        names = list(registry)
        assert names == sorted(names)
        assert all(registry.entry(name).about for name in names)
    assert {"fedavg", "fedlc", "fedmix-logits", "fedprox", "fedrs", "scaffold"} <= set(ALGORITHMS)
    assert list(SERVER_STEPS) == ["fedadam", "fedavg", "fedavgm", "fedyogi"]


def test_a_name_is_registered_once() -> None:
    registry = Registry("thing", "fedmix.server_steps")

    @registry.add("one")
    def first() -> int:
        """The first."""
        return 1

    assert registry["one"]() == 1
    assert registry.entry("one").about == "The first."
    with pytest.raises(
        BadInput, match=r"thing 'one' is registered twice, in .* rename one of them"
    ):
        registry.add("one")(lambda: 2)
