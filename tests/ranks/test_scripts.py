"""A script under torchrun: the same on every process, and one folder, progress and warning."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks.start import LONG, environment


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str, Path]:
    folder = tmp_path_factory.mktemp("script") / "run"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost"]
    # its agent answers itself within a minute by default, which a busy machine may not
    torchrun += ["--rdzv-conf", f"read_timeout={LONG},join_timeout={LONG}"]
    torchrun += ["--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "tests.ranks.script", folder],
        capture_output=True, text=True, timeout=LONG, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    texts = [Path(f"{folder}-{rank}.txt").read_text() for rank in (0, 1)]
    return "".join(texts).splitlines(), done.stderr, folder


def test_the_first_process_has_the_folder_and_the_callbacks(
    said: tuple[list[str], str, Path],
) -> None:
    lines, err, folder = said
    summary = json.loads((folder / "summary.json").read_text())
    for rank in (0, 1):
        assert f"{rank} has 2 rounds, {summary['last']}" in lines
    assert [line for line in lines if line.startswith("round")] == ["round 1 on 0", "round 2 on 0"]
    assert err.count("FedmixWarning: rank 1 takes small steps") == 1  # shown by the first


def test_federations_that_differ_are_refused_on_all(said: tuple[list[str], str, Path]) -> None:
    for rank in (0, 1):
        assert (
            f"{rank} refuses: processes 0 and 1 have different weights; every process must make "
            "the same federation, its model from a seed (models.initialised)"
        ) in said[0]


def test_an_error_on_one_process_is_raised_on_all(said: tuple[list[str], str, Path]) -> None:
    """Client 1, of three samples, is the share of the second process."""
    failed = [line for line in said[0] if " fails: " in line]
    assert len(failed) == 2
    for line in failed:
        assert "round 1, client 1, step 0: ValueError: such a batch is not for me" in line
