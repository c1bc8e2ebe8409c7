"""What is measured: all variants do the same work, and what is counted is what happened."""

from typing import Any

import pytest
import torch

from fedmix import BadInput
from fedmix.bench import cases, measure, products
from fedmix.bench.cases import VARIANTS, WORKLOADS, Size, federation
from fedmix.bench.measure import Bench, Clocked, Trial
from fedmix.experiment.presets import PRESETS
from fedmix.training import federation as federation_
from fedmix.training.engines import compiled
from tests.synthetic import listen

TINY = Size(clients=3, batch=4, steps=2)
EAGER = ("plain", "sequential", "vectorised")


def first_round(name: str, algorithm: str, variant: str, size: Size) -> Any:
    built = federation(WORKLOADS[name], algorithm, variant, size, "cpu")
    built.params, _, _ = built._train_round()
    return built


@pytest.mark.parametrize("algorithm", ["fedavg", "fedmix"])
def test_variants_come_to_the_same_weights(algorithm: str) -> None:
    rounds = [first_round("digits", algorithm, variant, TINY) for variant in EAGER]
    for other in rounds[1:]:
        for name, weights in rounds[0].params.items():
            assert torch.allclose(weights, other.params[name], atol=1e-5)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_have_the_shapes_and_settings_of_their_presets(name: str) -> None:
    preset = PRESETS[WORKLOADS[name].preset]
    built = federation(WORKLOADS[name], "fedmix", "plain", Size(steps=1), "cpu")
    shape = {"digits": (1, 8, 8), "lenet": (1, 28, 28), "vgg": (3, 32, 32), "charlstm": (80, 84)}[
        name
    ]
    outputs = {"digits": 10, "lenet": 62, "vgg": 10, "charlstm": 84}[name]
    assert built.data.input_shape == shape
    assert built.data.outputs == outputs
    assert built.training.clients_per_round == len(built.data.clients) == preset.clients_per_round
    assert built.training.batch_size == 10
    assert built.objective.lam == preset.fedmix_lam  # type: ignore[attr-defined]
    assert built.data.transform.pad == (4 if name == "vgg" else 0)


def test_ragged_clients_keep_the_mean_and_their_padding_is_counted() -> None:
    """Three clients of 20 %, 100 % and 180 % of 20 samples in batches of 4: 4, 20, 36 samples, 1,
    5, 9 steps.

    One after another (a second slot would stand idle for a sixth of the time) they take 15 steps;
    in three slots, of which a compiled step needs half to be busy, 9.
    """
    size = Size(clients=3, batch=4, steps=5, ragged=True)
    built = federation(WORKLOADS["digits"], "fedavg", "vectorised", size, "cpu")
    assert sorted(built.data.clients.sizes) == [4, 20, 36]
    clock = Clocked(built.runner, built.device)
    built.runner = clock
    work = listen(built)
    built._train_round()
    assert clock.steps == (1 + 5 + 9) / 3
    assert clock.padding == 0
    compiled, alone = (
        federation(WORKLOADS["digits"], "fedavg", variant, size, "cpu")
        for variant in ("compiled", "sequential")
    )
    assert measure._steps_and_padding(compiled.runner, work[0])[1] == pytest.approx(
        1 - (4 + 20 + 36) / (3 * 9 * 4)
    )
    assert measure._steps_and_padding(alone.runner, work[0])[1] == 0


def test_the_clock_counts_the_engine_and_not_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that moves by one at every look: two looks around each of three updates, and
    around the end.
    """
    ticks = iter(range(1000))
    monkeypatch.setattr("fedmix.bench.measure.time.perf_counter", lambda: float(next(ticks)))
    built = federation(WORKLOADS["digits"], "fedavg", "sequential", TINY, "cpu")
    clock = Clocked(built.runner, built.device)
    built.runner = clock
    built._train_round()
    assert clock.seconds == 4.0
    assert next(ticks) == 8


def test_every_round_is_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "cores", lambda: 1)
    trial = Trial(WORKLOADS["digits"], "fedmix", "vectorised", TINY, "cpu")
    trial.measure()
    once = trial.federation.params
    trial.measure()
    assert all(torch.equal(once[n], trial.federation.params[n]) for n in once)
    assert any(not torch.equal(once[n], trial.start[n]) for n in once)


def test_the_fastest_number_of_threads_is_kept_and_more_are_not_tried_once_they_are_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Second rounds take 3, 1, 1.05 and 2 seconds with 1, 2, 4 and 8 threads; first rounds take ten
    more.
    """
    seen: list[int] = []

    def timing(self: Trial, **_: bool) -> measure.Timing:
        seen.append(self.threads)
        seconds = {1: 3.0, 2: 1.0, 4: 1.05, 8: 2.0}[self.threads] + 10 * (
            seen.count(self.threads) == 1
        )
        return measure.Timing(seconds, seconds, 0)

    monkeypatch.setattr(measure, "cores", lambda: 32)
    monkeypatch.setattr(Trial, "_round", timing)
    trial = Trial(WORKLOADS["digits"], "fedavg", "plain", TINY, "cpu")
    assert (trial.threads, trial.warmup) == (2, 11.0)
    assert seen == [
        1,
        1,
        2,
        2,
        4,
        4,
        8,
        8,
        2,
    ]  # and the best once more, since code is compiled for a number


def test_variants_take_turns_and_records_hold_median_and_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds of 2 steps that take 20, 60, 40 ms (plain) and 10, 30, 20 ms of 40: medians of 20 and
    10 ms a step.
    """
    turns: list[str] = []

    def timing(self: Trial, **_: bool) -> measure.Timing:
        turns.append(self.variant)
        self.clock.steps = 2.0
        seconds = [0.5, 0.5, 0.02, 0.06, 0.04][turns.count(self.variant) - 1]
        return measure.Timing(0.04, seconds if self.variant == "plain" else seconds / 2, 0)

    monkeypatch.setattr(measure, "cores", lambda: 1)
    monkeypatch.setattr(Trial, "_round", timing)
    bench = Bench(TINY, "cpu", 3)
    bench.group("digits", WORKLOADS["digits"], "fedavg", ["plain", "vectorised"])
    assert turns[4:] == ["plain", "vectorised"] * 3
    plain, vectorised = bench.records
    assert plain.share is not None
    assert vectorised.share == pytest.approx(2 * plain.share)
    assert (plain.ms_per_step, plain.low, plain.high, plain.speedup) == pytest.approx(
        (20, 10, 30, 1)
    )
    assert (
        vectorised.ms_per_step,
        vectorised.low,
        vectorised.high,
        vectorised.speedup,
    ) == pytest.approx((10, 5, 15, 2))
    assert vectorised.outside == pytest.approx(0.5)  # 20 of 40 ms in the median round
    assert (vectorised.clients, vectorised.batch, vectorised.repeats, vectorised.threads) == (
        3,
        4,
        3,
        1,
    )
    assert plain.outside is plain.padding is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("digits", (False, 1)), ("lenet", (True, 5)), ("vgg", (True, 7)), ("charlstm", (False, 8))],
)
def test_the_default_is_that_of_the_presets(
    name: str, expected: tuple[bool, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with many cores; on a GPU the step is compiled, by one process."""
    monkeypatch.setattr(cases, "cores", lambda: 64)
    assert cases.chosen(WORKLOADS[name], "fedavg", Size(), "cpu") == expected
    assert cases.chosen(WORKLOADS[name], "fedavg", Size(), "cuda") == (True, 1)
    groups = [(name, "fedavg", ["plain", "default"])]
    assert measure.most_processes(groups, Size(), "cpu") == expected[1]


def test_the_default_has_the_threads_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "cores", lambda: 2)
    monkeypatch.setattr(Trial, "_round", lambda *_, **__: measure.Timing(1.0, 1.0, 0))
    for chosen, expected in ((None, 2), (1, 1)):
        monkeypatch.setattr(federation_, "threads_for", lambda *_, chosen=chosen: chosen)
        trial = Trial(WORKLOADS["digits"], "fedavg", "default", TINY, "cpu")
        assert (trial.threads, trial.federation.compiled) == (expected, False)


def test_the_share_of_what_the_cores_can_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products for a sample: 8·8·16·9, 8·8·32·16·9, 512·64 and 64·10, once forward, once for the
    weights, and but for the first once for the inputs; times two, four samples, three clients.
    """
    layers = (9_216, 294_912, 32_768, 640)
    by_hand = 2 * 4 * 3 * (3 * sum(layers) - layers[0])
    assert products.operations(WORKLOADS["digits"], "fedavg", TINY) == by_hand
    assert products.multiplying(torch.device("cpu"), "tf32") > 1e9
    ticks = iter([0, 1, 2, 2.5] * products.PRODUCTS)  # one second and a half, in turns
    monkeypatch.setattr("fedmix.bench.products.time.perf_counter", lambda: next(ticks))
    assert products.multiplying(torch.device("cpu"), "tf32") == 2 * 1024**3 / 0.5


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    Bench(TINY, "cpu", 1).group("digits", WORKLOADS["digits"], "fedavg", ["plain"])
    assert torch.get_num_threads() == before


def test_a_variant_that_fails_is_noted_without_folders_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "cores", lambda: 1)
    real = Trial.__init__

    def broken(self: Trial, workload: Any, algorithm: str, variant: str, *rest: Any) -> None:
        if variant == "compiled":
            raise RuntimeError("cannot open /usr/local/lib/libthing.so\nand more")
        real(self, workload, algorithm, variant, *rest)

    monkeypatch.setattr(Trial, "__init__", broken)
    bench = Bench(TINY, "cpu", 1)
    bench.group("digits", WORKLOADS["digits"], "fedavg", ["plain", "compiled"])
    assert [r.variant for r in bench.records] == ["plain"]
    assert bench.notes == ["digits fedavg compiled failed: cannot open libthing.so"]


def test_a_step_that_was_not_compiled_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: Any) -> Any:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr(measure, "cores", lambda: 1)
    monkeypatch.setattr(compiled, "_compile", cannot)
    bench = Bench(TINY, "cpu", 1)
    bench.group("digits", WORKLOADS["digits"], "fedavg", ["compiled"])
    [note] = bench.notes
    assert note.startswith(
        "digits fedavg compiled: the local step could not be compiled (no C++ compiler found)"
    )


def test_an_interrupted_bench_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "cores", lambda: 1)
    bench = Bench(TINY, "cpu", 5)

    def stop(what: str) -> None:
        if what.endswith("sequential: 2 of 5"):
            raise KeyboardInterrupt

    bench.listen = stop
    with pytest.raises(KeyboardInterrupt):
        bench.group("digits", WORKLOADS["digits"], "fedavg", ["plain", "sequential"])
    assert [(r.variant, r.repeats) for r in bench.records] == [("plain", 2), ("sequential", 1)]


@pytest.mark.parametrize(
    ("size", "repeats", "said"),
    [
        (Size(steps=0), 1, "--steps 0: at least one"),
        (Size(clients=0), 1, "clients_per_round=0 is no number of clients"),
        (Size(batch=0), 1, "batch_size=0 must be at least 1"),
        (Size(), 0, "--repeats 0: at least one"),
    ],
)
def test_sizes_that_are_none_are_refused(size: Size, repeats: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Bench(size, "cpu", repeats).group("digits", WORKLOADS["digits"], "fedavg", list(VARIANTS))
