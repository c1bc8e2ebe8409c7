"""Runs Flower's quickstart, with or without the diff that adds FedMix, on nodes of this process:

python -m tests.flower.quickstart fedavg fedmix --rounds 30 --seeds 4
"""

import argparse
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-quickstart"


def write(folder: Path, version: str) -> Path:
    """Copy the app; with the diff for "fedmix"."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if version == "fedmix":
        subprocess.run(["git", "apply", "fedmix.diff"], cwd=folder, check=True)
    return folder


def run(folder: Path, rounds: int, seed: int) -> list[float]:
    """The accuracy after each round."""
    from flwr.app import Context, RecordDict

    from tests.flower.nodes import Nodes

    sys.path.insert(0, str(folder))
    server_app: Any = import_module("quickstart.server_app")
    app: Any = import_module("quickstart.client_app").app
    logging.getLogger("flwr").setLevel(logging.WARNING)
    logging.getLogger("fedmix.flower").addHandler(logging.NullHandler())
    random.seed(seed)  # Flower chooses nodes by it
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    config |= {"num-server-rounds": rounds, "seed": seed}
    nodes = Nodes(app, range(config["num-clients"]), **{"num-partitions": config["num-clients"]})
    for context in nodes.contexts.values():
        context.run_config = config
    found: list[float] = []
    evaluate = server_app.evaluate

    def noted(number: int, arrays: Any) -> Any:
        scores = evaluate(number, arrays)
        found.append(float(scores["accuracy"]))
        return scores

    server_app.evaluate = noted
    server_app.app(nodes, Context(1, 0, {}, RecordDict(), config))
    return found


def apart(folder: Path, rounds: int, seed: int) -> list[float]:
    """The same in a process of its own, since both versions have one name."""
    code = (
        "import json, sys; from pathlib import Path; from tests.flower.quickstart import run; "
        f"found = run(Path({str(folder)!r}), {rounds}, {seed}); print(json.dumps(found))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    last: list[float] = json.loads(said.stdout.splitlines()[-1])
    return last


def main() -> None:
    """Print the accuracies, as means over the last five rounds, by seed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("versions", nargs="+", choices=["fedavg", "fedmix"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for version in options.versions:
            app = write(Path(folder) / version, version)
            runs = [apart(app, options.rounds, seed)[-5:] for seed in range(options.seeds)]
            last = [sum(run) / len(run) for run in runs]
            said = ", ".join(f"{100 * accuracy:.1f}" for accuracy in last)
            print(f"{version}: {said}; mean {100 * sum(last) / len(last):.1f} %", flush=True)


if __name__ == "__main__":
    main()
