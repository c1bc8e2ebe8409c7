"""The tables are whole, repeat what the paper repeats, and ask for the experiments that the paper
describes.
"""

import pytest

from fedmix.core.errors import BadInput
from fedmix.experiment.presets import experiment
from fedmix.experiment.spec import Experiment
from fedmix.paper import TABLES, named
from fedmix.paper.scale import small
from fedmix.paper.study import Study

MAIN = TABLES["main"]
FIVE = ("globalmix", "fedavg", "localmix", "naivemix", "fedmix")


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_a_number_or_a_gap_for_each_column(name: str) -> None:
    table = TABLES[name]
    assert {len(numbers) for numbers in table.paper.values()} == {len(table.columns)}
    assert set(table.paper) <= {row.name for row in table.rows}
    assert len({row.name for row in table.rows}) == len(table.rows)
    assert len({column.name for column in table.columns}) == len(table.columns)
    assert {name for pair in table.pairs for name in pair} <= {row.name for row in table.rows}


@pytest.mark.parametrize(
    ("name", "column", "rows"),
    [
        ("clients", "60", FIVE),
        ("local-data", "1.0", FIVE),
        ("classes", "2", FIVE),
        ("participation", "0.25", FIVE),
        ("epochs", "2", FIVE[1:]),
        ("controls", "cifar10", ("naivemix", "fedmix")),
        ("hidden", "accuracy", ("fedavg", "localmix", "fedmix")),
        ("cost", "hours", ("fedavg", "localmix", "fedmix")),
    ],
)
def test_the_main_setting_is_the_same_run_and_number_everywhere(
    name: str, column: str, rows: tuple[str, ...]
) -> None:
    """The paper varies one thing around its main setting; there it prints its main number, but for
    FedMix in tab:diff.
    """
    table = TABLES[name]
    for row in rows:
        assert table.experiment(row, column).id == MAIN.experiment(row, "cifar10").id
        if name != "cost":
            expected = (
                80.5 if (name, row) == ("participation", "fedmix") else MAIN.number(row, "cifar10")
            )
            assert table.number(row, column) == expected


def test_other_tables_that_repeat_each_other() -> None:
    """M_k = all and m = 1 are the main setting; without noise, tab:dp_mafl has FedMix's numbers of
    fig:meansize.
    """
    sizes, noise = TABLES["mean-size"], TABLES["noise"]
    for algorithm in ("naivemix", "fedmix"):
        for data in ("femnist", "cifar10"):
            assert sizes.number(f"{data}-{algorithm}", "all") == MAIN.number(algorithm, data)
            assert (
                sizes.experiment(f"{data}-{algorithm}", "all").id
                == MAIN.experiment(algorithm, data).id
            )
    for m in ("5", "10", "20"):
        assert noise.number(m, "0.0") == sizes.number("cifar10-fedmix", m)
        assert noise.experiment(m, "0.0").id == sizes.experiment("cifar10-fedmix", m).id
    assert TABLES["server-average"].number("1", "accuracy") == MAIN.number("fedmix", "cifar10")
    assert (
        TABLES["server-average"].experiment("1", "accuracy").id
        == MAIN.experiment("fedmix", "cifar10").id
    )
    assert TABLES["lambda"].number("fedmix", "0.05") == MAIN.number("fedmix", "cifar10")
    assert (
        TABLES["local-accuracy"].experiment("0.1", "small-std").id
        == TABLES["cutoff"].experiment("0.1", "1").id
    )


def test_experiments_are_those_that_the_paper_describes() -> None:
    assert TABLES["lambda"].experiment("globalmix", "0.2").values()["objective"] | {"mu": 0.0} == {
        "name": "globalmix", "lam": 0.2, "mu": 0.0, "layer": 0,
    }  # fmt: skip
    twenty = TABLES["clients"].experiment("fedavg", "20")
    assert (
        twenty.data.clients,
        twenty.training.clients_per_round,
        twenty.data.samples_per_client,
    ) == (20, 5, 833)
    assert [
        TABLES["participation"].experiment("fedmix", str(s)).training.clients_per_round
        for s in (0.1, 0.15, 0.5, 1.0)
    ] == [
        60 * 0.1, 60 * 0.15, 60 * 0.5, 60,
    ]  # fmt: skip
    few = TABLES["mean-size"].experiment("femnist-fedmix", "50")
    assert few.exchange is not None
    assert (few.exchange.m, few.exchange.cutoff, few.rounds, few.target) == (50, 50, 200, 0.8)
    cut = TABLES["cutoff"].experiment("0.05", "150")
    assert cut.exchange is not None
    assert (
        cut.exchange.cutoff,
        cut.data.clients,
        cut.training.clients_per_round,
        cut.objective.lam,
    ) == (150, 300, 30, 0.05)
    assert TABLES["hidden"].experiment("hidden-fedmix-4", "accuracy").objective.layer == 4
    skewed = TABLES["dirichlet"].experiment("naivemix", "0.5")
    assert (skewed.data.partition, skewed.data.alpha) == ("dirichlet", 0.5)
    halves = TABLES["split"].experiment("class", "accuracy").exchange
    assert halves is not None
    assert (halves.m, halves.split) == (0.5, "class")
    assert TABLES["classes"].experiment("fedavg", "10").data.partition == "iid"


def test_selection() -> None:
    chosen = MAIN.select("fedavg, fedmix", "cifar10")
    assert [row.name for row in chosen.rows] == ["fedavg", "fedmix"]
    assert [column.name for column in chosen.columns] == ["cifar10", "cifar10-rounds"]
    assert chosen.paper == {"fedavg": (73.8, 283), "fedmix": (81.2, 162)}
    assert len(list(chosen.experiments())) == 2
    for table in (MAIN, TABLES["shakespeare"], TABLES["classes"], TABLES["lambda"]):
        assert "fedmix-logits" not in {row.name for row in table.select(None, None).rows}
        assert table.select("fedmix-logits", None).rows[0].algorithm == "fedmix-logits"
    for wrong, said in (
        ({"rows": "fedmax", "columns": None}, "no row 'fedmax'"),
        ({"rows": None, "columns": ","}, "is empty"),
    ):
        with pytest.raises(BadInput, match=said):
            MAIN.select(**wrong)
    with pytest.raises(BadInput, match="table 'mian' is unknown; did you mean main"):
        named("mian")


def test_changes_are_laid_over_every_experiment_that_has_them() -> None:
    changes = {"data.augment": False, "objective.expand": "logits", "training.momentum": 0.0}
    study = Study(MAIN.select("fedavg,fedmix", None), (0, 1), changes=changes)
    found = study.experiments()
    assert len(found) == 2 * 2 * 3
    assert {e.training.momentum for e in found} == {0.0}
    assert {e.algorithm for e in found} == {"fedavg", "fedmix-logits"}
    assert {getattr(e.data, "augment", None) for e in found} == {False, None}
    assert study.warnings == [
        "CHANGED SETTINGS: data.augment=False, objective.expand=logits, training.momentum=0.0"
    ]
    assert not Study(MAIN, changes={"engine.device": "cuda", "engine.processes": 2}).warnings
    assert Study(MAIN, changes={"engine.precision": "bf16"}).warnings == [
        "CHANGED SETTINGS: engine.precision=bf16"
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.epochs": 3}, "training.epochs cannot be set for table epochs, which varies it"),
        ({"training.momentun": 0.5}, "did you mean training.momentum"),
        (
            {"data.augmentation": True},
            "data.augmentation=True is not a setting; did you mean data.augment",
        ),
        ({"objective.name": "fedmix"}, "objective.name cannot be set for a table"),
        ({"seed": 3}, "seed cannot be set for a table"),
        (
            {"objective.lam": 0.2},
            "objective.lam=0.2 cannot be set for localmix .settings: LocalMix.*; choose other rows",
        ),
        ({"objective.lam": 2.0}, "^settings: FedMix: lam=2.0 is outside"),
        ({"training.momentum": 2.0}, "^settings: training.momentum=2.0 is outside"),
    ],
)
def test_changes_that_cannot_be(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Study(TABLES["epochs"], changes=changes)


def test_changes_that_need_one_another() -> None:
    together = {
        "exchange.clip": 4.0,
        "exchange.label_clip": 1.0,
        "exchange.label_noise": 0.1,
        "exchange.noise": 0.1,
    }
    [fedavg, fedmix] = Study(
        TABLES["epochs"].select("fedavg,fedmix", "1"), changes=together
    ).experiments()
    assert (fedavg.exchange, fedmix.exchange and fedmix.exchange.label_noise) == (None, 0.1)
    with pytest.raises(BadInput, match="go together"):
        Study(TABLES["epochs"], changes={"exchange.label_noise": 0.1})


@pytest.mark.parametrize("name", TABLES)
def test_small_keeps_apart_what_a_table_varies(name: str) -> None:
    assert len(Study(TABLES[name], scale="small").experiments()) == len(
        Study(TABLES[name]).experiments()
    )


def test_small_keeps_what_the_columns_say() -> None:
    """Of CIFAR-10: N, K, E, M, λ and classes. Clients of 833 samples, or of shares of them, keep
    30 %.
    """

    def at(table: str, row: str, column: str) -> Experiment:
        return small(TABLES[table].experiment(row, column))

    one = at("clients", "fedavg", "20")
    assert (one.data.clients, one.training.clients_per_round, one.rounds) == (20, 5, 80)
    assert (one.data.samples_per_client, one.data.local_share) == (833, 0.3)
    assert at("local-data", "fedavg", "0.2").data.local_share == 0.06
    assert [
        at("participation", "fedavg", c).training.clients_per_round for c in ("0.1", "0.15", "1.0")
    ] == [6, 9, 60]
    assert [at("epochs", "fedavg", c).training.epochs for c in ("1", "10")] == [1, 10]
    means = at("mean-size", "femnist-fedmix", "50").exchange
    assert means is not None
    assert (means.m, means.cutoff) == (50, 50)
    assert at("dirichlet", "fedavg", "0.5").data.alpha == 0.5


def test_small_shrinks_in_proportion() -> None:
    """300 clients, 30 a round: 100 and 10. E = 10 is halved for FEMNIST and divided by 5 for
    CIFAR-100. Hidden states after 2 and 4 of nine layers are those after 1 and 2 of four.
    """
    cut = small(TABLES["cutoff"].experiment("0.1", "150"))
    assert (cut.data.clients, cut.training.clients_per_round, cut.training.epochs) == (100, 10, 5)
    assert cut.exchange is not None
    assert cut.exchange.cutoff == 150
    assert small(experiment("cifar100", "fedavg")).training.epochs == 2
    layers = [
        small(TABLES["hidden"].experiment(row, "accuracy")).objective.layer
        for row in ("fedavg", "hidden-fedmix", "hidden-fedmix-4")
    ]
    assert layers == [0, 1, 2]


def test_small_says_what_is_small() -> None:
    study = Study(TABLES["main"], scale="small")
    assert study.score == "late"
    for name in ("FEMNIST", "CIFAR-10 ", "CIFAR-100"):
        assert any(note.startswith(name) for note in study.notes)
    assert Study(TABLES["main"]).notes == list(TABLES["main"].notes)
    with pytest.raises(BadInput, match="of laptop size already"):
        Study(named("beyond"), scale="small")
    with pytest.raises(BadInput, match=r"model\.dropout"):  # the VGG has it, the small CNN not
        Study(TABLES["epochs"], scale="small", changes={"model.dropout": 0.2})
