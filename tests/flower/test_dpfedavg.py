"""DP-FedAvg on Flower: clipped before it leaves, noised by a secret, and counted by client."""

import math

import pytest
import torch
from flwr.app import Message

from fedmix import Experiment
from fedmix.core.types import Params
from fedmix.flower import client_app, wire
from fedmix.flower.remote import Remote
from fedmix.privacy import NoisySums, whole_of
from tests.flower.nodes import Nodes
from tests.flower.tasks import SIZES, light, remote, simulated, task

CLIP = 0.05


def private(noise: float = 0.0) -> Experiment:
    return light({"name": "fedavg"}, updates={"clip": CLIP, "noise_multiplier": noise})


def length(a: Params, b: Params) -> float:
    return math.sqrt(sum(float((a[n].double() - b[n].double()).square().sum()) for n in a))


def weights(message: Message, like: Remote) -> Params:
    shapes = {name: tuple(p.shape) for name, p in like.params.items()}
    return wire.unpack(message.content, "weights", shapes)


def test_without_noise_weights_are_those_of_the_simulation() -> None:
    real, reference = remote(private()), simulated(private())
    assert reference.updates is not None
    for _ in zip(real.run(3), reference.run(3), strict=True):
        pass
    for name, weight in reference.params.items():
        torch.testing.assert_close(real.params[name], weight, rtol=0, atol=1e-6)
    plain = simulated(light({"name": "fedavg"}))
    list(plain.run(3))
    assert length(plain.params, real.params) > CLIP


def test_no_update_beyond_the_bound_leaves_a_client_and_none_counts() -> None:
    """What leaves is at most C from what was sent. One that is 100 times longer on its way moves
    the average by C/K at most.
    """
    nodes = Nodes(client_app(task(private())), range(len(SIZES)))
    real, lengths = remote(private(), nodes, largest_update=1e6), list[float]()

    def seen(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "train":
            before, after = weights(asked, real), weights(reply, real)
            lengths.append(length(before, after))
            far = {n: before[n] + 100 * (after[n] - before[n]) for n in before}
            reply.content["weights"] = wire.pack(far)
        return reply

    nodes.tamper = dict.fromkeys(range(len(SIZES)), seen)
    start = dict(real.params)
    list(real.run(1))
    assert len(lengths) == 3
    assert max(lengths) == pytest.approx(CLIP, rel=1e-4)
    assert 0 < length(start, real.params) <= CLIP * (1 + 1e-5)


def test_noise_is_the_servers_secret() -> None:
    """The same experiment and seed give other weights each time, by √2·z·C/K on each."""
    one, other = (remote(private(4.0)) for _ in range(2))
    for run in (one, other):
        list(run.run(1))
    n = sum(p.numel() for p in one.params.values())
    apart = length(one.params, other.params) ** 2 / (2 * (4 * CLIP / 3) ** 2)  # chi-square, n
    assert abs(apart / n - 1) < 5 * math.sqrt(2 / n)


def test_the_account_is_of_who_took_part_most_often() -> None:
    """Three of four clients a round: nobody is promised that the choice is secret."""
    run = remote(private(4.0))
    list(run.run(2))
    most = int(run.chosen.max())
    assert run.chosen.sum() == 6
    assert most == 2
    assert whole_of(run).epsilon == NoisySums(2, 4.0).epsilon()
    again = remote(private(4.0))
    again.restore(run.state())
    list(again.run(3))
    assert again.chosen.sum() == 9
    assert whole_of(again).epsilon == NoisySums(int(again.chosen.max()), 4.0).epsilon()


def test_a_client_counts_whose_update_is_rejected() -> None:
    """It would not be, had it other data. Clients 0 and 3 are chosen in three rounds, and send NaN;
    1 and 2 in fewer.
    """

    def broken(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "train":
            new = weights(reply, run)
            reply.content["weights"] = wire.pack({n: w * math.nan for n, w in new.items()})
        return reply

    nodes = Nodes(client_app(task(private(4.0))), range(len(SIZES)))
    run = remote(private(4.0), nodes, min_share=0.3)
    nodes.tamper = {0: broken, 3: broken}
    assert [done.notes["replied"] for done in run.run(3)] == [1, 1, 1]
    assert whole_of(run).epsilon == NoisySums(3, 4.0).epsilon()


def test_a_round_that_fails_counts_nobody() -> None:
    nodes = Nodes(client_app(task(private(4.0))), range(len(SIZES)))
    run = remote(private(4.0), nodes, attempts=1)
    nodes.tamper = dict.fromkeys(range(len(SIZES)), lambda *_: None)
    with pytest.raises(Exception, match="clients replied well"):
        list(run.run(1))
    assert run.chosen.sum() == 0


def test_a_share_of_the_clients_is_one_of_all_that_the_server_expects() -> None:
    """K = 3/4 of four clients: the average is over three, as in the simulation."""
    some = {"clients_per_round": 0.75, "batch_size": 5, "lr": 0.05}
    experiment = light({"name": "fedavg"}, updates={"clip": CLIP}, training=some)
    real, reference = remote(experiment), simulated(experiment)
    for _ in zip(real.run(2), reference.run(2), strict=True):
        pass
    for name, weight in reference.params.items():
        torch.testing.assert_close(real.params[name], weight, rtol=0, atol=1e-6)
    assert reference.took_part() == (2, 3, 4)
