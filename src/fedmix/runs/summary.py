"""summary.json: the results of a finished run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json
from fedmix.privacy.accounting import upwards
from fedmix.privacy.of_run import guarantee_of
from fedmix.runs.folder import read
from fedmix.training.rounds import Rounds

FILE = "summary.json"
TEN = 10
HIGHER_IS_BETTER = {"accuracy": True, "mse": False}


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary in a run folder, or None; raise BadInput if the file is damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    content = read(path)
    try:
        said = parse_json(content)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise BadInput(f"{path} is damaged; delete it and go on with: fedmix resume {folder}")
    return said


def scores_of(
    name: str, tests: Sequence[tuple[int, float | None]], target: float | None
) -> dict[str, Any]:
    """Return the scores of a run: last, best, mean of the last ten tests, and rounds to the target.

    Args:
        name: Name of the score, accuracy or mse.
        tests: Rounds with their scores; None for a score that is not finite.
        target: Score to reach; None if there is none.
    """
    more = HIGHER_IS_BETTER[name]
    finite = [(round_, score) for round_, score in tests if score is not None]
    best_round, best = (
        (max if more else min)(finite, key=lambda test: test[1]) if finite else (None, None)
    )
    reached = [
        round_
        for round_, score in finite
        if target is not None and (score >= target if more else score <= target)
    ]
    last_ten = [score for _, score in tests[-TEN:] if score is not None]
    whole = len(last_ten) == len(tests[-TEN:])
    return {
        "last": tests[-1][1],
        "best": best,
        "best_round": best_round,
        "mean_last_ten": float(np.mean(last_ten)) if whole else None,
        "target": target,
        "rounds_to_target": reached[0] if reached else None,
    }


def summarise(
    lines: Sequence[dict[str, Any]], identity: str, algorithm: str, target: float | None
) -> dict[str, Any]:
    """Return the summary of a run, without privacy.

    Args:
        lines: The metrics of all its rounds.
        identity: The experiment's identity.
        algorithm: Name of the algorithm.
        target: Score to reach; None if there is none.
    """
    final = lines[-1]
    name = "accuracy" if "accuracy" in final else "mse"
    tests = [(line["round"], line[name]) for line in lines if name in line]
    return {
        "rounds": final["round"],
        "identity": identity,
        "algorithm": algorithm,
        "score_name": name,
        **scores_of(name, tests, target),
        "seconds": final["seconds"],
        "bytes_up": final["bytes_up"],
        "bytes_down": final["bytes_down"],
    }


def privacy(federation: Rounds) -> dict[str, Any]:
    """Return what the releases so far guarantee, in a sentence and in numbers.

    The numbers are None where nothing is guaranteed.
    """
    sample = guarantee_of(federation)
    numbers = {
        "epsilon": sample.epsilon if sample else None,
        "delta": sample.delta,
        "releases": sample.releases,
    }
    said = str(sample)
    if sample:
        client = guarantee_of(federation, level="client")
        said += (
            f" For a whole client replaced: ε = {upwards(client.epsilon)}."
            if client
            else " None for a whole client."
        )
        said += " Weights, sizes and who takes part are not covered."
    return {"privacy": said, **numbers}
