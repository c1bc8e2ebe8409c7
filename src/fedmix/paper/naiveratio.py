"""The mixing ratio λ of NaiveMix (the paper's tab:naivemix_lambda)."""

from fedmix.paper.base import PaperTable, Part, sweep

TABLE = PaperTable(
    name="naivemix-lambda",
    title="Test accuracy of NaiveMix after 500 rounds on CIFAR-10 by mixing ratio λ",
    source="tab:naivemix_lambda",
    rows=sweep("λ = {}", "objective.lam", 0.05, 0.1, 0.2, 0.5),
    columns=(Part("accuracy", "round 500"),),
    paper={"0.05": (79.5,), "0.1": (79.9,), "0.2": (80.6,), "0.5": (29.8,)},
    algorithm="naivemix",
    pairs=(("0.2", "0.1"), ("0.2", "0.5")),
    notes=("For λ = 0.1 the paper prints 79.9 here and 77.4 in its main table.",),
)
