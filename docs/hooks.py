"""Writes the tables of settings.md and reproduction.md when the site is built.

A setting's explanation is the sentence of its docstring that names it, or the one in SAYS. The
build fails if a setting has neither, or if SAYS names one that does not exist.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

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
    "model.initialise": "`he` for He's initial weights, `torch` for PyTorch's own.",
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
    "training.clients_per_round": "K, the number of clients that train in a round.",
    "training.epochs": "E, how often a client goes through its samples in a round.",
    "training.batch_size": "B, samples per local step.",
    "training.lr": "Learning rate of the first round.",
    "training.lr_decay": "The learning rate is multiplied by this after every round.",
    "training.momentum": "Momentum of the local SGD, below 1. It starts from zero in every round.",
    "training.weight_decay": "Weight decay of the local SGD.",
    "engine.name": "`vectorised` trains the clients of a round together, `sequential` one after "
    "the other.",
    "engine.device": "`cpu`, `cuda`, `cuda:1` and so on.",
    "engine.chunk": "Number of clients that are trained at once. Unset: the engine decides.",
    "engine.compile": "Compile the step first. Unset: on a GPU only.",
    "engine.precision": "How a GPU multiplies while it trains: [bf16](speed.md) is the fastest and "
    "rounds the most. A CPU always uses float32.",
    "engine.processes": "Divide a round's clients among [this many processes](scale.md), which the "
    "command line starts (`--workers`). It is not part of a run's name and may change when a run "
    "continues; weights may then differ by rounding.",
}
# For one objective alone, where others have another setting of the same name.
SAYS |= {
    f"{objective}.alpha": "λ is drawn from Beta(alpha, alpha); 1 draws it uniformly."
    for objective in ("naivemix", "meanmix", "fedmix", "restrictedmix", "balance")
} | {"restrictedmix.scale": "Factor of the outputs of classes that the client lacks."}
ABOUT = {
    "": "These stand at the top of a file, before any section.",
    "data": "The data set, and how it is dealt out to clients. `data.name` chooses one; `own` is "
    "for [federations](federation.md) whose clients load their own, and has no settings.",
    "model": "`model.name` chooses one. Sizes that follow from the data, such as the number of "
    "classes, are filled in.",
    "objective": "What a client minimises. `objective.name` chooses one.",
    "training": "What happens in a round.",
    "exchange": "What is averaged and sent. Only for objectives that use means.",
    "server": "What the server does with the clients' average. `server.name` chooses one.",
    "engine": "Where and how clients run. It changes the speed but, except for rounding, not the "
    "result.",
}
WORDS = {"int": "integer", "float": "number", "bool": "true, false", "str": "text", "None": "unset"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables where a page has a marker for them.

    Python sessions get no copy button, which would copy their prompts.
    """
    for marker, write in MARKERS.items():
        if marker in markdown:
            markdown = markdown.replace(marker, write())
    return markdown.replace("```pycon\n", "``` { .pycon .no-copy }\n")


def settings_tables() -> str:
    """All sections, each with a table, or with one for each name that it can have."""
    from fedmix import Exchange, Training
    from fedmix.core.registry import DATA, MODELS, OBJECTIVES, SERVER_STEPS
    from fedmix.experiment import spec

    every = list(spec.settings())
    known = {path for path, *_ in every}
    known |= {f"{of}.{path.rpartition('.')[2]}" for path, _, _, of in every}
    unknown = SAYS.keys() - known
    if unknown:
        raise ValueError(
            f"docs/hooks.py explains settings that do not exist: {', '.join(sorted(unknown))}"
        )
    builders: dict[str, dict[str, Callable[..., Any]]] = {
        "data": dict(DATA), "model": dict(MODELS), "objective": dict(OBJECTIVES),
        "exchange": {"": Exchange}, "training": {"": Training}, "engine": {"": spec.EngineSection},
        "server": dict(SERVER_STEPS),
    }  # fmt: skip
    lines = ["<style>.md-typeset td:first-child code { white-space: nowrap }</style>", ""]
    sections = dict.fromkeys(path.rpartition(".")[0] for path, *_ in every)
    for section in sorted(sections, key=list(ABOUT).index):
        lines += [f"## {f'[{section}]' if section else 'The run'}", "", ABOUT[section], ""]
        for name in dict.fromkeys(
            of for path, _, _, of in every if path.rpartition(".")[0] == section
        ):
            build = builders.get(section, {}).get(name)
            if name:
                lines += [
                    f"### {section}.name = “{name}” {{ #{section}-{name} }}",
                    "",
                    _summary(build),
                    "",
                ]
            lines += ["| setting | what it does |", "|---|---|"]
            for path, kind, default, of in every:
                if path.rpartition(".")[0] == section and of == name:
                    lines.append(
                        f"| `{path}`<br>{_kind(kind)}{_default(default)} | "
                        f"{_explain(path, name, build)} |"
                    )
            lines.append("")
    return "\n".join(lines)


def presets_table() -> str:
    """What each preset sets, one column per preset."""
    from fedmix.experiment.presets import PRESETS, experiment

    runs = {
        name: {a: experiment(name, a).values() for a in ("naivemix", "fedmix", "fedprox")}
        for name in PRESETS
    }
    rows: dict[str, Callable[[dict[str, Any]], Any]] = {
        "`model.name`": lambda run: run["fedmix"]["model"]["name"],
        "`data.clients`, N": lambda run: run["fedmix"]["data"]["clients"],
        "`training.clients_per_round`, K": lambda run: run["fedmix"]["training"][
            "clients_per_round"
        ],
        "`training.epochs`, E": lambda run: run["fedmix"]["training"]["epochs"],
        "`training.batch_size`, B": lambda run: run["fedmix"]["training"]["batch_size"],
        "`training.lr`": lambda run: run["fedmix"]["training"]["lr"],
        "`training.lr_decay`": lambda run: run["fedmix"]["training"]["lr_decay"],
        "`training.momentum`": lambda run: run["fedmix"]["training"]["momentum"],
        "`objective.lam` of naivemix": lambda run: run["naivemix"]["objective"]["lam"],
        "`objective.lam` of fedmix": lambda run: run["fedmix"]["objective"]["lam"],
        "`objective.mu` of fedprox": lambda run: run["fedprox"]["objective"]["mu"],
        "`rounds`": lambda run: run["fedmix"]["rounds"],
        "`evaluate_every`": lambda run: run["fedmix"]["evaluate_every"],
        "`target`": lambda run: run["fedmix"]["target"],
    }
    lines = [f"| setting | {' | '.join(runs)} |", "|---" * (len(runs) + 1) + "|"]
    lines += [
        f"| {label} | {' | '.join(f'{value(run)}' for run in runs.values())} |"
        for label, value in rows.items()
    ]
    return "\n".join(lines)


def paper_tables() -> str:
    """Every table of the paper that can be run: its name, rows, columns and number of runs."""
    from fedmix.paper import TABLES

    lines = ["| table | what it is | runs a seed | rows; columns |", "|---|---|---|---|"]
    for table in (table.select(None, None) for table in TABLES.values()):
        names = "; ".join(
            ", ".join(f"`{part.name}`" for part in parts) for parts in (table.rows, table.columns)
        )
        runs = len(list(table.experiments()))
        lines.append(f"| `{table.name}`<br>{table.source} | {table.title} | {runs} | {names} |")
    return "\n".join(lines)


MARKERS: dict[str, Callable[[], str]] = {
    "<!-- settings -->": settings_tables,
    "<!-- presets -->": presets_table,
    "<!-- paper -->": paper_tables,
}


def _sentences(build: Callable[..., Any] | None) -> Iterator[str]:
    text = (inspect.getdoc(build) or "").split(">>>")[0] if build else ""
    for sentence in re.split(r"(?<=[.])\s+", text):
        yield " ".join(sentence.split()).rstrip(".")


def _summary(build: Callable[..., Any] | None) -> str:
    return " ".join((inspect.getdoc(build) or "").split("\n\n")[0].split())


def _explain(path: str, name: str, build: Callable[..., Any] | None) -> str:
    field = path.rpartition(".")[2]
    said = (
        SAYS.get(f"{name}.{field}")
        or SAYS.get(path)
        or next((f"{s[0].upper()}{s[1:]}." for s in _sentences(build) if f"`{field}`" in s), None)
    )
    if said is None:
        raise ValueError(
            f"{path} has no explanation: name it in its docstring, or explain it in docs/hooks.py"
        )
    return said.replace("|", "\\|")


def _kind(text: str) -> str:
    """A type in words: `he` or `torch`; integer, or unset."""
    text = re.sub(r"FieldInfo\(.*\)", "", text)
    parts = re.findall(r"'[^']*'|\b(?:int|float|bool|str|None)\b", text)
    if not parts:
        raise ValueError(f"docs/hooks.py has no words for the type {text}")
    words = [
        word
        for part in parts
        for word in ([f"`{part[1:-1]}`"] if part.startswith("'") else WORDS[part].split(", "))
    ]
    if "Optional[" in text:
        words.append(WORDS["None"])
    if re.search(r"(?i)sequence|tuple|list", text):
        words = [f"list of {words[0]}s", *words[1:]]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _default(value: Any) -> str:
    if value == "(required)":
        return ", required"
    if value is None:
        return ""
    shown = (
        str(value).lower()
        if isinstance(value, bool)
        else str(list(value))
        if isinstance(value, tuple)
        else str(value)
    )
    return f"; `{shown}`"
