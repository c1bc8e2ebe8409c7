"""Next-character prediction (the paper's tab:shakespeare)."""

from fedmix.paper.base import PaperTable, Part, algorithms

NUMBERS = {
    "globalmix": (54.4,),
    "fedavg": (54.7,),
    "fedprox": (54.4,),
    "localmix": (53.7,),
    "naivemix": (56.9,),
    "fedmix": (56.9,),
}

TABLE = PaperTable(
    name="shakespeare",
    title="Test accuracy after 50 rounds on Shakespeare",
    source="tab:shakespeare",
    rows=algorithms(*NUMBERS),
    columns=(Part("accuracy", "round 50"),),
    paper=NUMBERS,
    preset="shakespeare",
    notes=(
        "Mixup acts on one-hot letters; under the current embedding that is mixup of embeddings, "
        "and the embedding trains.",
    ),
)
