"""What each setting means: in words, for the command line and the documentation.

A setting's explanation is the sentence of its docstring that names it, or the one in SAYS.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fedmix.core.registry import DATA, MODELS, OBJECTIVES, SERVER_STEPS
from fedmix.exchange import Exchange
from fedmix.experiment.sections import EngineSection
from fedmix.experiment.spec import settings
from fedmix.training.dpfedavg import DPFedAvg
from fedmix.training.head import Head
from fedmix.training.settings import Training

SAYS = {
    "rounds": "Number of rounds. The only setting that may grow when a run continues.",
    "evaluate_every": "Number of rounds between tests. The last round is always tested.",
    "target": "The score to count rounds to, such as 0.9.",
    "seed": "Deals the data out, initialises the model, chooses clients and draws batches.",
    "data.clients": "N, the number of clients.",
    "data.classes_per_client": "Classes (or shards) per client, in partitions by class or shard.",
    "data.alpha": "How even a Dirichlet partition is: large is even, small is not.",
    "data.local_share": "The share of its samples that each client keeps, above 0 and at most 1.",
    "data.test_share": "The share of samples that is held out for the test.",
    "data.train_share": "The share of a role's text that trains; the rest tests.",
    "data.least": "The smallest number of samples of a client.",
    "data.cap": "The largest number of samples of a client that are used.",
    "data.augment": "Crop and flip training images at random.",
    "data.partition": "`classes` (equal shards of a few classes), `random-classes`, `shards` "
    "(dealt out at random), `dirichlet` (with `alpha`) or `iid`.",
    "data.samples_per_client": "Deal out only this many samples per client.",
    "data.normalise": "`standard` for mean 0 and deviation 1, or `unit` for values in [0, 1].",
    "model.initialise": "`he` for He's initial weights, `he-conv` for He's in convolutions alone, "
    "`torch` for PyTorch's own.",
    "model.channels": "Channels of the input images.",
    "model.widths": "Output channels of the convolutions.",
    "model.hidden": "Width of the hidden layers.",
    "model.dropout": "Probability with which dropout sets a value to zero.",
    "model.embedding": "Size of a letter's embedding.",
    "objective.lam": "λ, the mixing ratio in [0, 1]. Small values are usual.",
    "objective.per": "One mean for a whole batch, or one for each sample.",
    "objective.mu": "μ, the weight of FedProx's term. 0 leaves it out.",
    "objective.layer": "Mix hidden states after this many layers. 0 mixes inputs.",
    "objective.third": "Factor of ℓ3: 1 is its right size, 0 leaves it out.",
    "objective.scale": "How ℓ3 is weighted: λ, as in the paper's proposition, or λ(1−λ), as in its "
    "algorithm.",
    "objective.lam_per": "A drawn λ for a whole batch, or one for each sample.",
    "objective.weight": "Weight of the term that asks for uniform outputs at means.",
    "objective.expand": "Expand the `loss`, as the paper does, or the `logits`, which cannot "
    "diverge.",
    "training.clients_per_round": "K, the number of clients that train in a round; a share of all, "
    "such as 0.1; or `all`.",
    "training.epochs": "E, how often a client goes through its samples in a round.",
    "training.batch_size": "B, samples per local step.",
    "training.lr": "Learning rate of the first round.",
    "training.lr_decay": "The learning rate is multiplied by this after every round.",
    "training.momentum": "Momentum of the local SGD, below 1. It starts from zero in every round.",
    "training.weight_decay": "Weight decay of the local SGD.",
    "updates.clip": "C, the bound on the L2 norm of a client's update, over all layers together.",
    "updates.noise_multiplier": "z: the noise on the sum of updates has deviation z·C. 0 adds "
    "none.",
    "head.name": "`lda`: by linear discriminant analysis.",
    "head.shrinkage": "How far the covariance is drawn to a multiple of the identity, above 0 and "
    "at most 1.",
    "head.clip": "Bound on the norm of a sample's features.",
    "head.noise": "Deviation of the noise on every value that a client sends, which are means of "
    "features in units of `head.clip`.",
    "head.since": "Set it at every test from this round on, and not after the last round alone: "
    "for studies.",
    "engine.name": "`vectorised` trains the clients of a round together, `sequential` one after "
    "the other.",
    "engine.device": "`cpu`, `cuda`, `cuda:1` and so on.",
    "engine.chunk": "Number of clients that are trained at once; with `none` the engine decides.",
    "engine.compile": "Compile the step first; with `none`, on a GPU, and for long runs on a CPU.",
    "engine.precision": "How a GPU multiplies while it trains: bf16 is the fastest and "
    "rounds the most. A CPU always uses float32.",
    "engine.processes": "Divide a round's clients among this many processes, which the "
    "command line starts (`--workers`); with `none`, one for each core in long runs on a CPU, else "
    "one. It is not part of a run's name and may change when a run continues; weights may then "
    "differ by rounding.",
}
# For one objective alone, where others have another setting of the same name.
SAYS |= {
    f"{objective}.alpha": "λ is drawn from Beta(alpha, alpha); 1 draws it uniformly."
    for objective in ("naivemix", "meanmix", "fedmix", "restrictedmix", "balance")
} | {"restrictedmix.scale": "Factor of the outputs of classes that the client lacks."}
SECTIONS = {
    "": "These stand at the top of a file, before any section.",
    "data": "The data set, and how it is dealt out to clients. `data.name` chooses one; `own` is "
    "for federations whose clients load their own, and has no settings.",
    "model": "`model.name` chooses one. Sizes that follow from the data, such as the number of "
    "classes, are filled in.",
    "objective": "What a client minimises. `objective.name` chooses one.",
    "training": "What happens in a round.",
    "exchange": "What is averaged and sent. Only for objectives that use means.",
    "server": "What the server does with the clients' average. `server.name` chooses one.",
    "updates": "DP-FedAvg: clients' updates are clipped, and noise is added to their sum, for one "
    "guarantee. Leave the section out for FedAvg's average.",
    "head": "The last layer in closed form, from statistics that all clients send after the last "
    "round. Leave the section out for none.",
    "engine": "Where and how clients run. It changes the speed but, except for rounding, not the "
    "result.",
}
WORDS = {
    "int": "integer", "float": "number", "bool": "true, false", "str": "text", "None": "`none`",
}  # fmt: skip


class Explanation(NamedTuple):
    """One setting, in words. Names and values are in backticks, as in Markdown.

    Attributes:
        path: Dotted path, such as objective.lam.
        of: The name that its section must have, such as fedmix; empty if it has this setting under
            every name, or no name.
        kind: What it can be, such as "integer or `none`".
        default: The default as one would write it, or "required".
        meaning: What it does: one or two sentences.
    """

    path: str
    of: str
    kind: str
    default: str
    meaning: str

    @property
    def section(self) -> str:
        """Name of the section; empty for settings of the run."""
        return self.path.rpartition(".")[0]


def explanations() -> list[Explanation]:
    """Return every setting with its type, default and meaning, section by section.

    >>> epochs = next(s for s in explanations() if s.path == "training.epochs")
    >>> epochs.kind, epochs.default, epochs.meaning
    ('integer', '1', 'E, how often a client goes through its samples in a round.')
    """
    every = [
        Explanation(path, of, _kind(kind), _default(default), _meaning(path, of))
        for path, kind, default, of in settings()
    ]
    return sorted(every, key=lambda setting: list(SECTIONS).index(setting.section))


def builder(section: str, of: str) -> Callable[..., Any] | None:
    """Return what is built from a section with this name; None if a section builds nothing."""
    builders: dict[str, dict[str, Callable[..., Any]]] = {
        "data": dict(DATA), "model": dict(MODELS), "objective": dict(OBJECTIVES),
        "exchange": {"": Exchange}, "training": {"": Training}, "engine": {"": EngineSection},
        "server": dict(SERVER_STEPS), "updates": {"": DPFedAvg},
        "head": {"": Head},
    }  # fmt: skip
    return builders.get(section, {}).get(of)


def _meaning(path: str, of: str) -> str:
    section, _, field = path.rpartition(".")
    found = (
        SAYS.get(f"{of}.{field}")
        or SAYS.get(path)
        or next((s for s in _sentences(builder(section, of)) if f"`{field}`" in s), None)
    )
    if found is None:
        raise LookupError(
            f"{path} has no explanation: name it in a sentence of its docstring, or explain it in "
            f"{__name__}.SAYS"
        )
    return found


def _sentences(build: Callable[..., Any] | None) -> Iterator[str]:
    text = (inspect.getdoc(build) or "").split(">>>")[0] if build else ""
    for sentence in re.split(r"(?<=[.])\s+", text):
        said = " ".join(sentence.split()).rstrip(".")
        yield f"{said[:1].upper()}{said[1:]}."


def _kind(text: str) -> str:
    """Return a type in words: `he` or `torch`; integer or `none`."""
    text = re.sub(r"FieldInfo\(.*\)", "", text)
    parts = re.findall(r"'[^']*'|\b(?:int|float|bool|str|None)\b", text)
    words = [
        word
        for part in parts
        for word in ([f"`{part[1:-1]}`"] if part.startswith("'") else WORDS[part].split(", "))
    ]
    if not words:
        raise LookupError(f"{__name__} has no words for the type {text}")
    if "Optional[" in text:
        words.append(WORDS["None"])
    if re.search(r"(?i)sequence|tuple|list", text):
        words = [f"list of {words[0]}s", *words[1:]]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _default(value: Any) -> str:
    match value:
        case "(required)":
            return "required"
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple():
            return str(list(value))
        case _:
            return str(value)
