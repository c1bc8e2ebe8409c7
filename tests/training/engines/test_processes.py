"""Clients on several processes: the same weights, the same errors, the same bits every time, and
nothing left behind.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmix import BadInput, Diverged, Exchange, Federation, FedMix, Objective, Supervised, Training
from fedmix.core.errors import FedmixError, Interrupted
from fedmix.core.types import Batch, Params
from fedmix.experiment.presets import experiment
from fedmix.models import Model, initialised
from fedmix.runs.run import Run
from fedmix.training import federation
from fedmix.training.aggregation import Updates
from fedmix.training.engines import Sequential, Vectorised
from fedmix.training.engines.processes import Processes, _told, divided
from tests.synthetic import RAGGED, SHAPES, federated
from tests.training.engines.test_failures import Explodes

SHARED_MEMORY = Path("/dev/shm")


def built(objective: Objective, sizes: tuple[int, ...] = RAGGED, **kwargs: Any) -> Federation:
    training = Training(clients_per_round=len(sizes), epochs=2, batch_size=4, lr=0.01, momentum=0.9)
    module, data = (
        initialised(SHAPES["digits_cnn"][0], seed=1),
        federated("digits_cnn", sizes, seed=3),
    )
    exchange = Exchange(m=1) if objective.needs.means else None
    return Federation(module, data, objective, training, exchange=exchange, seed=3, **kwargs)


def after(rounds: int, federation: Federation) -> Params:
    list(federation.run(rounds))
    return federation.params


def apart(a: Params, b: Params) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


@pytest.fixture(scope="module")
def runner() -> Processes:
    """For the digits' model and FedMix, on two processes, which start with the first round."""
    found = built(FedMix(0.1), engine=Vectorised(processes=2)).runner
    assert isinstance(found, Processes)
    return found


def test_same_weights_and_the_same_bits_again(runner: Processes) -> None:
    one, again = built(FedMix(0.1)), built(FedMix(0.1))
    one.runner = again.runner = runner
    weights = after(2, one)
    assert apart(weights, after(2, built(FedMix(0.1)))) < 1e-6
    assert apart(weights, after(2, built(FedMix(0.1), engine=Sequential()))) < 1e-6
    assert apart(weights, after(2, again)) == 0.0


def test_a_round_that_was_left_in_the_middle_is_tried_again(
    runner: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while updates are averaged, in a notebook, which keeps the error: no late reply is
    taken for another round's.
    """

    def stopped(updates: Iterator[Updates], _: object) -> None:
        next(updates)
        raise KeyboardInterrupt

    one = built(FedMix(0.1))
    one.runner = runner
    monkeypatch.setattr(federation, "average", stopped)
    with pytest.raises(KeyboardInterrupt) as kept:
        after(1, one)
    monkeypatch.undo()
    assert apart(after(3, one), after(3, built(FedMix(0.1)))) < 1e-6
    assert kept.value is not None


def test_what_did_not_fit_into_shared_memory_is_put_there_later(
    runner: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = built(FedMix(0.1))
    one.runner = runner
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        with pytest.raises(FedmixError, match="shared memory"):
            after(1, one)
    assert apart(after(1, one), after(1, built(FedMix(0.1)))) < 1e-6


def test_open_files_do_not_grow_with_the_model() -> None:
    """Two workers take 4 each for good and 5 more at first, where 81 tensors alone would be 81 for
    the parent, and for each.
    """
    deep = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 10), *[torch.nn.Linear(10, 10) for _ in range(39)]
    )
    one = Federation(
        deep,
        federated("digits_cnn", (4, 4)),
        Supervised(),
        Training(2),
        engine=Sequential(processes=2),
    )
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/dev/fd").iterdir()))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 30, before[1]))
        with pytest.raises(
            FedmixError,
            match=rf"2 worker .* this one may have {used + 30}; allow more .* or use fewer",
        ):
            after(1, one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 50, before[1]))
        after(1, one)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_processes_than_clients() -> None:
    several = built(Supervised(), (12, 5), engine=Sequential(processes=3))
    assert apart(after(1, several), after(1, built(Supervised(), (12, 5)))) < 1e-6
    assert isinstance(several.runner, Processes)
    assert len(several.runner._workers) == 2


def test_clients_are_divided_evenly() -> None:
    """By hand: 9, 8 | 7, 6 | 5 dealt there and back to two are 9 + 6 + 5 and 8 + 7; nobody gets two
    clients more than another.
    """
    assert divided([5, 9, 7, 6, 8], 2) == [[0, 1, 3], [2, 4]]
    assert divided([3, 3], 5) == [[0], [1]]
    for count in range(1, 8):
        shares = divided(list(RAGGED), count)
        assert sorted(i for share in shares for i in share) == list(range(len(RAGGED)))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_clients_failure_arrives_as_what_it_is() -> None:
    data = federated("digits_cnn", pad=0)
    x = data.x.copy()
    x[:, 0, 0] = 0
    x[data.clients[2][5], 0, 0] = 255
    data = type(data)(**{**vars(data), "x": x})
    told = []
    for processes in (1, 2):
        federation = Federation(
            Explodes(),
            data,
            Supervised(),
            Training(len(RAGGED), batch_size=10),
            engine=Vectorised(processes=processes),
        )
        with pytest.raises(
            Diverged,
            match=r"round 1, client 2, step .* the loss is NaN or infinite; its input was x",
        ) as caught:
            after(1, federation)
        told.append(str(caught.value))
    assert told[0] == told[1]


class Awkward(Exception):
    """Cannot be made from its message."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def test_errors_that_cannot_be_sent_become_a_sentence() -> None:
    assert str(_told(Awkward(1, 2))) == "Awkward: 1 and 2"
    assert "in a worker process" in _told(RuntimeError("no")).__notes__[0]


def test_a_killed_worker_is_noticed_and_the_next_round_starts_others(runner: Processes) -> None:
    federation = built(FedMix(0.1))
    federation.runner = runner
    after(1, federation)
    os.kill(
        runner._workers[0].process.pid or 0, signal.SIGINT
    )  # as Ctrl-C does, and nothing happens
    after(2, federation)
    os.kill(runner._workers[1].process.pid or 0, signal.SIGKILL)
    with pytest.raises(
        FedmixError,
        match=r"a worker process was killed \(signal 9\), and the round with it; if memory ran out",
    ):
        after(3, federation)
    assert (federation.round, runner._workers) == (2, [])
    assert apart(after(3, federation), after(3, built(FedMix(0.1)))) < 1e-6


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    spec = experiment("digits", "fedavg").with_settings(
        {"rounds": 2, "training.clients_per_round": 2, "training.epochs": 1}
    )
    wider = spec.with_settings({"engine.processes": 2})
    assert wider.id == spec.id
    with pytest.raises(Interrupted):
        Run(spec, tmp_path).execute(stopped=lambda: True)
    done = Run(wider, tmp_path).execute()
    assert done["rounds"] == 2
    assert Run.open(tmp_path).experiment.engine.processes == 2
    assert apart(Run.open(tmp_path).restored().params, after(2, spec.federation())) < 1e-5


def test_what_cannot_be_sent_or_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Supervised):
        def __call__(self, model: Model, params: Params, anchor: Params, batch: Batch) -> Tensor:
            return super().__call__(model, params, anchor, batch)

    with pytest.raises(
        BadInput,
        match=r"Mine.* no worker process can have it; define it at the top of a module, or set "
        r"engine.pro",
    ):
        built(Mine(), engine=Vectorised(processes=2))
    with pytest.raises(
        BadInput, match=r"engine.processes=0 must be at least 1, and a whole number"
    ):
        built(Supervised(), engine=Vectorised(processes=0))
    with pytest.raises(BadInput, match=r"engine.processes=0 should be greater than or equal to 1"):
        experiment("digits", "fedavg").with_settings({"engine.processes": 0})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    fresh = built(FedMix(0.1), engine=Vectorised(processes=2))
    with pytest.raises(
        FedmixError, match=r"MiB more of shared memory, and /dev/shm has 0 left; enlarge it"
    ):
        after(1, fresh)


UNGUARDED = """
from fedmix import Federation, Supervised, Training, data, models
from fedmix.training.engines import Vectorised
training, engine = Training(2, epochs=1), Vectorised(processes=2)
net, samples = models.digits_cnn(), data.digits(clients=5)
federation = Federation(net, samples, Supervised(), training, engine=engine)
next(federation.run(1))
"""


def test_a_script_without_a_guard_is_told_so_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 1
    assert (
        "a script must start runs under if __name__ == '__main__'" in ended.stderr.splitlines()[-1]
    )


CHILDREN = """
import os, signal
from fedmix import Federation, Supervised, Training, data, models
from fedmix.training.engines import Vectorised
if __name__ == "__main__":
    training, engine = Training(2, epochs=1), Vectorised(processes=2)
    net, samples = models.digits_cnn(), data.digits(clients=5)
    federation = Federation(net, samples, Supervised(), training, engine=engine)
    next(federation.run(2))
    print(*[worker.process.pid for worker in federation.runner._workers], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="looks into Linux's folder of shared memory")
def test_workers_die_with_their_parent_and_leave_no_memory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    before = set(SHARED_MEMORY.glob("torch_*"))
    said = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False
    ).stdout
    pids = [int(pid) for pid in said.split()]
    assert len(pids) == 2
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert set(SHARED_MEMORY.glob("torch_*")) <= before


IMPORTING = """
import os, sys, time
from pathlib import Path
if __name__ == "__mp_main__":
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(60)  # as long as imports may take
from fedmix import Federation, Supervised, Training, data, models
from fedmix.training.engines import Vectorised
if __name__ == "__main__":
    training, engine = Training(2, epochs=1), Vectorised(processes=2)
    net, samples = models.digits_cnn(), data.digits(clients=5)
    federation = Federation(net, samples, Supervised(), training, engine=engine)
    next(federation.run(1))
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere no signal comes when a parent is gone"
)
def test_workers_that_still_import_die_with_their_parent(tmp_path: Path) -> None:
    script, workers = tmp_path / "script.py", tmp_path / "workers"
    script.write_text(IMPORTING)
    workers.mkdir()
    with subprocess.Popen([sys.executable, script, workers], stderr=subprocess.DEVNULL) as parent:
        end = time.monotonic() + 120
        while len(list(workers.iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        parent.kill()
    pids = [int(path.name) for path in workers.iterdir()]
    assert len(pids) == 2
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere no signal comes when a parent is gone"
)
def test_workers_outlive_the_thread_that_started_them() -> None:
    """For Linux, the parent of a process is a thread."""
    federation = built(FedMix(0.1), engine=Vectorised(processes=2))
    for _ in range(2):
        thread = threading.Thread(target=lambda: next(federation.run(federation.round + 1)))
        thread.start()
        thread.join()
        time.sleep(0.2)
    assert federation.round == 2
