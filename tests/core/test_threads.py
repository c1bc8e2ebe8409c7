"""How threads wait, which is settled when fedmix is imported."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from fedmix import Federation, FedmixWarning, Supervised, Training, models
from fedmix.core import threads
from tests.synthetic import arrays


@pytest.fixture
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in threads.SAYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_spins_beside_others", False)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))


def test_an_import_makes_threads_sleep_unless_somebody_chose_otherwise() -> None:
    code = "import sys, fedmix, os; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    bare = {k: v for k, v in os.environ.items() if k not in threads.SAYS}
    for given, expected in (({}, "PASSIVE False"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE False")):
        done = subprocess.run(
            [sys.executable, "-c", code], env=bare | given, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected, done.stderr


@pytest.mark.usefixtures("_unset")
def test_threads_that_spin_on_a_busy_machine_are_warned_of_once() -> None:
    """Torch is imported here already."""
    threads.wait_passively()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        threads.warn_of_spinning(1)  # alone, it waits for nobody
        assert not said
        threads.warn_of_spinning(2)
        threads.warn_of_spinning(2)
    assert [w.category for w in said] == [FedmixWarning]
    assert "import fedmix first" in str(said[0].message)


@pytest.mark.usefixtures("_unset")
def test_the_warning_names_the_line_that_makes_a_federation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads.wait_passively()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.warns(FedmixWarning, match="import fedmix first") as said:
        Federation(models.mlp(4, 3), arrays(), Supervised(), Training(2))
    assert said[0].filename == __file__


@pytest.mark.usefixtures("_unset")
def test_nobody_is_warned_where_it_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.3, 5.0, 5.0))  # nothing else runs now
    threads.wait_passively()
    threads.warn_of_spinning(2)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 5.0, 5.0))
    threads.wait_passively()  # the variable is set by now
    threads.warn_of_spinning(2)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("GOMP_SPINCOUNT", "100")
    threads.wait_passively()
    threads.warn_of_spinning(2)
