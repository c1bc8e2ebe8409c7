"""Any ClientApp with `share_means` under any Strategy in `WithMeans`."""

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    Krum,
    Result,
    Strategy,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedmix import BadInput, Exchange
from fedmix.flower import received_means, refusals, share_means
from fedmix.flower.owner import data_of
from fedmix.flower.roster import TooFew
from fedmix.functional import MeanPool
from fedmix.privacy import guarantee
from tests.flower.lies import weight
from tests.flower.nodes import Nodes
from tests.flower.own_app import (
    LAM,
    LR,
    client_app,
    mixing,
    model,
    own,
    plain,
    sharing_app,
    start,
    values,
    with_means,
)  # fmt: skip
from tests.flower.tasks import CLASSES, SIZES, samples

ALL = Exchange()
Array = np.ndarray[Any, Any]


def mean_of(client: int) -> tuple[Array, Array]:
    """By hand: the mean of a client's samples, and of their one-hot labels."""
    x, y = samples(client, SIZES[client])
    return x.mean(0), np.eye(CLASSES)[y].mean(0)


def run(strategy: Strategy, nodes: Nodes, rounds: int = 3) -> Result:
    random.seed(0)  # Flower's strategies choose nodes by it
    np.random.seed(0)  # noqa: NPY002 - and draw noise by this
    return strategy.start(nodes, start(), num_rounds=rounds)


def four(**more: Any) -> dict[str, Any]:
    return {"min_train_nodes": 4, "min_evaluate_nodes": 4, "min_available_nodes": 4, **more}


def pool_at(nodes: Nodes, client: int) -> Array:
    pool = received_means(nodes.contexts[nodes.node_of(client)])
    assert pool is not None
    return pool.x.numpy()


def test_everyone_gets_the_means_of_all_and_trains_against_them() -> None:
    """One entry, the mean of four means; the loss and its gradient by double backward."""
    how = Exchange(average=4)
    nodes = Nodes(sharing_app(how), range(4))
    done = run(with_means(FedAvg(**four()), how), nodes, rounds=1)
    x_bar, y_bar = (np.mean([mean_of(k)[i] for k in range(4)], 0) for i in (0, 1))
    for client in range(4):
        np.testing.assert_allclose(pool_at(nodes, client), x_bar[None], rtol=1e-5)
    expected = {name: np.zeros(part.shape) for name, part in model().state_dict().items()}
    for client in range(4):
        net = model()
        x, y = (torch.from_numpy(part) for part in samples(client, SIZES[client]))
        x = ((1 - LAM) * x).requires_grad_()
        at_own = F.cross_entropy(net(x), y, reduction="none")
        to_mean = torch.tensor(y_bar, dtype=torch.float32).expand(len(x), -1)
        at_mean = F.cross_entropy(net(x), to_mean, reduction="none")
        [slope] = torch.autograd.grad(at_own.sum(), x, create_graph=True)
        along = (slope * torch.tensor(x_bar, dtype=torch.float32)).sum(1)
        torch.autograd.backward(((1 - LAM) * at_own + LAM * at_mean + LAM * along).mean())
        share = SIZES[client] / sum(SIZES)
        for name, part in net.named_parameters():
            assert part.grad is not None
            expected[name] += share * (part.detach() - LR * part.grad).numpy()
    for name, array in values(done.arrays).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6)


class Best(FedAvg):
    """A strategy of the user's own, with a loop of its own, as Flower's examples have it."""

    best = 0.0

    def start(  # type: ignore[override]
        self, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3, **_: Any
    ) -> Result:
        result, arrays = Result(), initial_arrays
        for number in range(1, num_rounds + 1):
            asked = self.configure_train(number, arrays, ConfigRecord(), grid)
            new, _metrics = self.aggregate_train(number, grid.send_and_receive(asked))
            assert new is not None
            result.arrays = arrays = new
            self.note(number)
        return result

    def note(self, number: int) -> None:
        self.best = float(number)


class Noting(FedAvg):
    """One that notes its rounds: what `start` makes is there for the other functions."""

    def start(self, *args: Any, **kwargs: Any) -> Result:
        self.seen = list[int]()
        return super().start(*args, **kwargs)

    def aggregate_train(self, server_round: int, *args: Any) -> Any:
        self.seen.append(server_round)
        return super().aggregate_train(server_round, *args)


def clipping(kind: Any) -> Any:
    return lambda: kind(FedAvg(**four()), 0.1, 0.5, 4)


LOCAL = LocalDpMod(1.0, 0.1, 10.0, 1e-5)


@pytest.mark.parametrize(
    ("make", "mods"),
    [
        (lambda: FedAvg(**four()), []),
        (lambda: FedAvg(**four()), [LOCAL]),
        (lambda: FedAvgM(**four(server_learning_rate=0.7, server_momentum=0.5)), []),
        (lambda: FedAdam(**four(eta=0.05)), []),
        (lambda: Krum(**four(num_malicious_nodes=1)), []),
        (clipping(DifferentialPrivacyServerSideFixedClipping), []),
        (clipping(DifferentialPrivacyClientSideFixedClipping), [fixedclipping_mod]),
        (lambda: Best(**four()), []),
        (lambda: Noting(**four()), []),
    ],
    ids=[
        "FedAvg",
        "LocalDp",
        "FedAvgM",
        "FedAdam",
        "Krum",
        "DpServer",
        "DpClient",
        "own start",
        "noting",
    ],
)
def test_a_strategy_does_what_it_does_alone(make: Any, mods: list[Any]) -> None:
    """Clients that leave their means unused send the same weights; so the result is the same."""
    alone = run(make(), Nodes(client_app(plain, mods), range(4)))
    nodes, strategy = Nodes(sharing_app(ALL, plain, mods), range(4)), make()
    wrapped = with_means(strategy, ALL)
    ours = run(wrapped, nodes)
    theirs = values(alone.arrays)
    assert values(ours.arrays).keys() == theirs.keys()
    for name, array in values(ours.arrays).items():
        np.testing.assert_array_equal(array, theirs[name])
    for one in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        assert getattr(ours, one) == getattr(alone, one)
    assert len(nodes.of_kind("query.means")) == len(nodes.of_kind("query.pool")) == 4
    means = np.stack([mean_of(k)[0] for k in range(4)])
    np.testing.assert_allclose(np.sort(pool_at(nodes, 0), 0), np.sort(means, 0), rtol=1e-4)
    if isinstance(strategy, Best):
        assert strategy.best == wrapped.best == 3.0
    if isinstance(strategy, Noting):
        assert strategy.seen == wrapped.seen == [1, 2, 3]


def test_settings_are_the_strategys() -> None:
    nodes, wrapped = Nodes(sharing_app(ALL), range(4)), with_means(FedAvg(**four()), ALL)
    wrapped.min_train_nodes, wrapped.fraction_train = 1, 0.25
    run(wrapped, nodes, rounds=2)
    assert len(nodes.of_kind("train")) == 2


def test_means_change_what_is_trained() -> None:
    one, other = (
        values(run(with_means(FedAvg(**four()), ALL), Nodes(sharing_app(ALL, s), range(4))).arrays)
        for s in (plain, mixing)
    )
    assert not np.allclose(one["weight"], other["weight"], atol=1e-3)


def test_only_who_trains_gets_the_pool_and_gets_it_once() -> None:
    nodes = Nodes(sharing_app(ALL), range(4))
    run(with_means(FedAvg(fraction_train=0.5, fraction_evaluate=0.0), ALL), nodes, rounds=4)
    trained = {nodes.client_of(m) for m in nodes.of_kind("train")}
    got = [nodes.client_of(m) for m in nodes.of_kind("query.pool")]
    assert sorted(got) == sorted(trained)
    assert len(nodes.of_kind("query.means")) == 4


def test_a_node_of_another_shape_is_kept_out_before_it_sends_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the strategy does not choose it."""

    def narrow(context: Context) -> tuple[Any, Any]:
        x, y = own(context)
        return (x[:, 1:] if context.node_config["partition-id"] == 2 else x), y

    app = client_app()
    share_means(app, narrow, ALL, classes=CLASSES)
    nodes = Nodes(app, range(4))
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        run(with_means(FedAvg(), ALL, min_clients=3), nodes)
    assert "is not let in: its samples have shape (5,), and the server's (6,)" in caplog.text
    kinds = {m.metadata.message_type for m in nodes.sent if nodes.client_of(m) == 2}
    assert kinds == {"query.join"}
    assert len(nodes.of_kind("train")) == 3 * 3


def test_a_late_node_changed_data_and_a_node_that_forgot() -> None:
    nodes = Nodes(sharing_app(ALL), range(3))
    strategy = with_means(FedAvg(), ALL, min_clients=3)
    run(strategy, nodes, rounds=1)
    assert len(pool_at(nodes, 0)) == 3
    nodes.add(3)
    run(strategy, nodes, rounds=1)
    assert len(pool_at(nodes, 0)) == len(pool_at(nodes, 3)) == 4
    nodes.contexts[nodes.node_of(1)].node_config["more"] = 9
    run(strategy, nodes, rounds=1)  # in which it says so
    nodes.contexts[nodes.node_of(2)].state.clear()
    run(strategy, nodes, rounds=1)
    assert strategy.exchange.version == 3
    new = samples(1, SIZES[1] + 9)[0].mean(0)
    assert np.isclose(pool_at(nodes, 0), new, rtol=1e-4).all(1).sum() == 1
    assert received_means(nodes.contexts[nodes.node_of(2)]) is not None
    assert strategy.exchange.sent.tolist() == [1, 2, 1, 1]


def test_a_node_that_forgot_is_sent_the_pool_in_the_next_round() -> None:
    nodes, strategy = Nodes(sharing_app(ALL), range(4)), with_means(FedAvg(**four()), ALL)
    run(strategy, nodes, rounds=1)
    nodes.contexts[nodes.node_of(2)].state.clear()
    run(strategy, nodes, rounds=2)
    assert [len(nodes.of_kind("query.pool", k)) for k in range(4)] == [1, 1, 2, 1]
    assert len(nodes.of_kind("query.means")) == 4


def strict(net: nn.Module, x: Tensor, y: Tensor, pool: MeanPool | None) -> Tensor:
    """As in the quickstart: it takes for granted that the pool is there."""
    assert pool is not None
    return mixing(net, x, y, pool)


def test_a_node_that_fails_without_the_pool_gets_it_again() -> None:
    nodes = Nodes(sharing_app(ALL, strict), range(4))
    strategy = with_means(FedAvg(fraction_evaluate=0.0), ALL)
    run(strategy, nodes, rounds=1)
    nodes.contexts[nodes.node_of(2)].state.clear()
    done = run(strategy, nodes, rounds=2)
    assert [len(nodes.of_kind("query.pool", k)) for k in range(4)] == [1, 1, 2, 1]
    everyone = run(strategy, nodes, rounds=1)
    assert done.train_metrics_clientapp.keys() == {1, 2}
    assert len(nodes.of_kind("query.pool")) == 5
    loss = everyone.train_metrics_clientapp[1]["loss"]
    assert isinstance(loss, float)
    assert loss > 0


def test_changed_data_wait_for_others() -> None:
    how = Exchange(wait=0.5)
    nodes, strategy = Nodes(sharing_app(how), range(4)), with_means(FedAvg(**four()), how)
    run(strategy, nodes, rounds=1)
    nodes.contexts[nodes.node_of(1)].node_config["more"] = 9
    run(strategy, nodes, rounds=2)
    assert strategy.exchange.version == 1
    nodes.contexts[nodes.node_of(2)].node_config["more"] = 9
    run(strategy, nodes, rounds=2)
    assert strategy.exchange.version == 2
    assert strategy.exchange.sent.tolist() == [1, 2, 2, 1]


def test_cut_off_own_entries_and_policy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("least_m = 15\n")
    how = Exchange(m=5, cutoff=10, exclude_own=True)  # 8 samples are too few
    nodes = Nodes(sharing_app(how), range(3))
    nodes.add(3)
    nodes.contexts[nodes.node_of(2)].node_config["policy"] = str(policy)
    strategy = with_means(FedAvg(**four()), how)
    with caplog.at_level(logging.INFO, "fedmix.flower"):
        run(strategy, nodes, rounds=1)
    assert strategy.exchange.releases is not None
    assert np.bincount(strategy.exchange.releases.owner).tolist() == [23 // 5, 0, 30 // 15, 12 // 5]
    assert [len(pool_at(nodes, k)) for k in range(4)] == [4, 8, 6, 6]
    assert (
        "2 means leave this node, over 15 samples each; without noise, not clipped" in caplog.text
    )


def test_secure_sums_work_too() -> None:
    how = Exchange(average=2, clip=30.0, secure="secagg+")
    nodes, strategy = Nodes(sharing_app(how), range(4)), with_means(FedAvg(**four()), how)
    run(strategy, nodes, rounds=2)
    pool, own_means = pool_at(nodes, 0), np.stack([mean_of(k)[0] for k in range(4)])
    pairs = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    close = [
        all(np.isclose(pool, own_means[list(p)].mean(0), atol=1e-4).all(1).any() for p in two)
        for two in pairs
    ]
    assert close.count(True) == 1
    assert not nodes.of_kind("query.means")
    assert strategy.exchange.sent.tolist() == [1, 1, 1, 1]


def test_what_was_released_is_counted_over_runs_and_guaranteed(tmp_path: Path) -> None:
    how, ledger = Exchange(m=4, clip=2.0, noise=1.0), tmp_path / "new" / "releases.json"
    for times in (1, 2):
        strategy = with_means(FedAvg(**four()), how, ledger=ledger)
        run(strategy, Nodes(sharing_app(how), range(4)), rounds=2)
        assert strategy.guarantee().epsilon == guarantee(how, 4, releases=times).epsilon
    assert with_means(FedAvg(), ALL).guarantee().reason.startswith("the means carry no noise")


def test_a_run_goes_on_with_its_means() -> None:
    first = with_means(FedAvg(**four()), ALL)
    run(first, Nodes(sharing_app(ALL), range(4)), rounds=1)
    again, nodes = with_means(FedAvg(**four()), ALL), Nodes(sharing_app(ALL), range(4))
    again.restore(first.state())
    run(again, nodes, rounds=1)
    assert not nodes.of_kind("query.means")
    assert len(pool_at(nodes, 2)) == 4
    with pytest.raises(BadInput, match="no fitting digests"):
        again.restore({n: t for n, t in first.state().items() if n != "settled"})


def test_means_that_are_none_are_rejected_and_so_is_who_says_to_be_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes, strategy = Nodes(sharing_app(ALL), range(4)), with_means(FedAvg(**four()), ALL)

    def spoil(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "query.means":
            weight(reply.content, lambda x: x * np.nan, "x", "means")
        if asked.metadata.message_type == "train":
            reply.content["fedmix"] = ConfigRecord(
                {**reply.content.config_records["fedmix"], "client": 3}
            )
        return reply

    nodes.tamper[1] = spoil
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        done = run(strategy, nodes, rounds=1)
    assert "a reply of client 1 is rejected: its means 'x' hold NaN" in caplog.text
    assert "a reply of client 1 is rejected: it says that it is client 3 now" in caplog.text
    assert len(pool_at(nodes, 0)) == 3
    assert done.arrays is not None
    assert strategy.roster.rejected == 2


def test_who_lets_no_weights_out_is_not_asked_to_train_and_gives_means(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("share_weights = false\n")
    nodes = Nodes(sharing_app(ALL), range(4))
    nodes.contexts[nodes.node_of(0)].node_config["policy"] = str(policy)
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        run(with_means(FedAvg(**four()), ALL), nodes, rounds=2)
    assert [len(nodes.of_kind("train", k)) for k in range(4)] == [0, 2, 2, 2]
    assert caplog.text.count("client 0 is not asked to train: its policy") == 1
    assert len(pool_at(nodes, 1)) == 4
    assert len(nodes.of_kind("evaluate", 0)) == 2


def test_without_means_nobody_trains() -> None:
    nodes = Nodes(sharing_app(ALL), range(4))
    nodes.tamper = dict.fromkeys(
        range(4),
        lambda asked, reply: None if asked.metadata.message_type == "query.means" else reply,
    )
    with pytest.raises(TooFew, match="no client has sent means"):
        run(with_means(FedAvg(), ALL, timeout=0.1, attempts=2), nodes)
    assert not nodes.of_kind("train")


def test_other_settings_than_the_servers_are_told_in_the_roll_call() -> None:
    for theirs in ({"exchange": Exchange(m=5)}, {"experiment": "mine"}):
        app = client_app()
        share_means(app, own, **{"exchange": ALL, "classes": CLASSES, **theirs})  # type: ignore[arg-type]
        with pytest.raises(TooFew, match=r"its experiment or exchange is .*, and the server's"):
            run(with_means(FedAvg(), ALL, join_timeout=0.1), Nodes(app, range(4)))


def test_the_order_of_registration_does_not_matter() -> None:
    app = ClientApp()
    share_means(app, own, ALL, classes=CLASSES)

    @app.train()
    def train(message: Message, _: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": start(), "metrics": metrics}), reply_to=message)

    nodes = Nodes(app, range(4))
    run(with_means(FedAvg(fraction_evaluate=0.0), ALL), nodes, rounds=2)
    assert all(
        "fedmix" in nodes.app(m, nodes.contexts[m.metadata.dst_node_id]).content
        for m in nodes.of_kind("train")
    )


def test_before_a_pool_comes_there_is_none() -> None:
    assert received_means(Context(1, 1, {}, RecordDict(), {})) is None


def test_what_cannot_work_is_refused_in_a_sentence() -> None:
    with pytest.raises(BadInput, match=r"needs an app with functions of @app\.train"):
        share_means(ClientApp(lambda _: None), own, ALL)  # type: ignore[arg-type, return-value]
    sources: list[Any] = ["own", "noise"]
    for source in sources:
        with pytest.raises(BadInput, match="is a control for simulations"):
            share_means(ClientApp(), own, Exchange(source=source))
    with pytest.raises(BadInput, match="average=9 clients are in a sum, and clients=4"):
        with_means(FedAvg(), Exchange(average=9, clip=1.0, secure="secagg+"))
    wrong: Any
    for wrong, said in ((0, "clients=0 must be at least 1"), ("4", "clients='4' must be .* whole")):
        with pytest.raises(BadInput, match=said):
            with_means(FedAvg(), ALL, clients=wrong)
    for wrong, said in (
        (FedAvg, "`strategy` is the class FedAvg; give a strategy"),
        (with_means(FedAvg(), ALL), "exchanges means already"),
    ):
        with pytest.raises(BadInput, match=said):
            with_means(wrong, ALL)
    for wrong in ({"m": 5}, Exchange, None):
        with pytest.raises(BadInput, match=r"`exchange` is .*; give a fedmix\.Exchange"):
            with_means(FedAvg(), wrong)
    wrong = object(), samples(0, 5)
    with pytest.raises(BadInput, match="`app` is of type object; give the app itself"):
        share_means(wrong[0], own, ALL)
    with pytest.raises(BadInput, match="`samples` is of type tuple; give a function"):
        share_means(ClientApp(), wrong[1], ALL)
    for more, said in (
        ({"classes": 0}, "classes=0 must be at least 1"),
        ({"seed": "x"}, "seed='x' must be at least 0"),
        ({"experiment": 5}, "`experiment` is of type int; give a text"),
    ):
        with pytest.raises(BadInput, match=said):
            sharing_app(ALL, **more)
    with pytest.raises(BadInput, match="seed=-1 must be at least 0"):
        with_means(FedAvg(), ALL, seed=-1)
    with pytest.raises(BadInput, match="shares means already; call share_means once"):
        share_means(sharing_app(ALL), own, ALL, classes=CLASSES)
    message: Any = Message(RecordDict(), dst_node_id=1, message_type="train")
    with pytest.raises(BadInput, match="`context` is of type Message"):
        received_means(message)


def test_an_app_of_another_flower_is_refused_in_a_sentence() -> None:
    app = client_app()
    del app._registered_funcs
    with pytest.raises(BadInput, match=r"Flower .* keeps these elsewhere; install a version"):
        share_means(app, own, ALL, classes=CLASSES)


def test_a_ledger_that_cannot_be_written_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        with_means(FedAvg(), ALL, ledger=tmp_path / "file" / "releases.json")
    with_means(FedAvg(), ALL, ledger=tmp_path / "new" / "releases.json")
    assert not (tmp_path / "new").exists()


def test_why_nobody_was_let_in_is_told_at_the_end() -> None:
    def gone(_: Context) -> Any:
        raise FileNotFoundError("a secret")

    app = client_app()
    share_means(app, gone, ALL, classes=CLASSES)
    said = "the last node was not let in: it refuses: its data cannot be loaded; its own log says"
    with pytest.raises(TooFew, match=said):
        run(with_means(FedAvg(), ALL, join_timeout=0.1), Nodes(app, range(4)))


@pytest.mark.parametrize(
    "given",
    [None, [{"image": 1, "label": 2}], [samples(0, 5)[0]], list(samples(0, 5)), [([1.0], [1, 2])]],
)
def test_samples_that_are_no_pairs_are_told(given: Any) -> None:
    with pytest.raises(BadInput, match=r"samples .*; give a pair \(inputs, labels\), or batches"):
        data_of(given, CLASSES)


def test_the_same_samples_in_another_order_are_the_same_data() -> None:
    """A loader that shuffles gives another order in every epoch."""
    x, y = (torch.from_numpy(part) for part in samples(0, 23))
    loader = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True)
    one, other = data_of(loader, CLASSES), data_of(loader, CLASSES)
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    np.testing.assert_allclose(one.x.mean(0), x.mean(0), rtol=1e-5)
    assert sorted(one.y.tolist()) == sorted(y.tolist())
    np.testing.assert_array_equal(data_of(TensorDataset(x, y), CLASSES).x, one.x)


def test_a_refusal_of_the_apps_own_function_is_no_reply_for_the_strategy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("a secret")

    nodes = Nodes(sharing_app(ALL, fails), range(4))
    with caplog.at_level(logging.WARNING, "fedmix.flower"):
        run(with_means(FedAvg(fraction_evaluate=0.0), ALL), nodes, rounds=1)
    told = [r.getMessage() for r in caplog.records if "refuses" in r.getMessage()]
    assert told
    assert all(line.endswith(refusals.REASONS["failed"]) for line in told)
