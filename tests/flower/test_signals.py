"""Being asked to end, once or twice, leaves nothing running."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmix.cli.federation import _stop_on_signals
from fedmix.flower.processes import Link


def nothing(*_: object) -> None: ...


class Disturbed(Exception):
    pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_asked_to_end_is_as_ctrl_c(number: signal.Signals) -> None:
    before = signal.signal(number, nothing)  # so that a handler that is missing ends no test run
    try:
        with pytest.raises(KeyboardInterrupt), _stop_on_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is nothing
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        with _stop_on_signals():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_being_asked_again_does_not_interrupt_cleaning_up(
    number: signal.Signals, tmp_path: Path
) -> None:
    class Impatient(Link):
        def _stop(self) -> None:
            signal.raise_signal(number)
            super()._stop()

    def interrupt(*_: object) -> None:
        raise Disturbed

    link = Impatient(tmp_path)
    process: subprocess.Popen[bytes] = link.start(
        "sleeper", [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    before = signal.signal(number, interrupt)
    try:
        link.stop()
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)
        process.kill()
    assert process.wait() == -signal.SIGTERM
