"""summary.json: the results of a finished run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmix.core.errors import BadInput
from fedmix.core.files import parse_json
from fedmix.core.reprs import as_html
from fedmix.privacy.accounting import upwards
from fedmix.privacy.of_run import guarantee_of, head_guarantee_of, whole_of
from fedmix.runs.folder import read
from fedmix.runs.metrics import read_lines
from fedmix.training.history import History
from fedmix.training.rounds import HEAD_SCORE, Rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = "summary.json"
TEN = 10
SEEDED = " The noise follows from the seed: this is what the method promises with secret noise."
HIGHER_IS_BETTER = {"accuracy": True, "mse": False}


class Summary(dict[str, Any]):
    """The summary of a run, as in its summary.json, with the metrics of its rounds.

    Args:
        values: The summary.
        folder: The run folder.
    """

    def __init__(self, values: Mapping[str, Any], folder: Path) -> None:
        super().__init__(values)
        self.folder = folder

    @property
    def history(self) -> History:
        """Metrics of all rounds as columns, from metrics.jsonl."""
        return History.of(read_lines(self.folder / "metrics.jsonl"))

    def plot(self, name: str | None = None, **style: Any) -> "Axes":
        """Draw a metric by round, see `History.plot`."""
        return self.history.plot(name, **style)

    def _repr_html_(self) -> str:
        return as_html([*self.items(), ("folder", self.folder)])


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
    head = (
        {"head": {"before": final[name], "after": final[HEAD_SCORE]}} if HEAD_SCORE in final else {}
    )
    return {
        "rounds": final["round"],
        "identity": identity,
        "algorithm": algorithm,
        "score_name": name,
        **scores_of(name, tests, target),
        **head,
        "seconds": final["seconds"],
        "bytes_up": final["bytes_up"],
        "bytes_down": final["bytes_down"],
    }


def privacy(federation: Rounds) -> dict[str, Any]:
    """Return what the releases so far guarantee, in a sentence and in numbers.

    The numbers are None where nothing is guaranteed. `whole` is about all that leaves clients, and
    one client; the others are about means, and one sample.
    """
    sample, whole = guarantee_of(federation), whole_of(federation)
    numbers = {
        "epsilon": sample.epsilon if sample else None,
        "delta": sample.delta,
        "releases": sample.releases,
        "whole": {
            "epsilon": whole.epsilon if whole else None,
            "delta": whole.delta,
            "parts": whole.parts,
            "reason": whole.reason,
        },
    }
    seeded = SEEDED if federation.samples_are_here else ""
    if whole or (federation.updates and federation.updates.noise_multiplier):
        return {"privacy": str(whole) + (seeded if whole else ""), **numbers}
    said = str(sample)
    if sample:
        client = guarantee_of(federation, level="client")
        said += (
            f" For a whole client replaced: ε = {upwards(client.epsilon)}."
            if client
            else " None for a whole client."
        )
        said += f" Weights, sizes and who takes part are not covered.{seeded}"
    if federation.head is not None:
        said += f" The head's statistics, beyond what the weights tell: {_of_head(federation)}"
    return {"privacy": said, **numbers}


def _of_head(federation: Rounds) -> str:
    """Return what the statistics for a head guarantee, in a sentence or two."""
    sample = head_guarantee_of(federation)
    if not sample:
        return str(sample)
    client = head_guarantee_of(federation, level="client")
    return f"{sample} For a whole client replaced: ε = {upwards(client.epsilon)}."
