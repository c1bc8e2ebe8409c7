"""Compiled code that is kept: where, how much, and what goes first."""

import json
import os
import time
from pathlib import Path

import pytest
from torch._inductor.cpu_vec_isa import VecAVX2, VecISA

from fedmix.training.engines import kept_code
from tests.test_cli import fedmix


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMIX_CACHE", str(tmp_path))


def put(name: str, size: int, age: float) -> Path:
    path = kept_code.folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def left() -> set[str]:
    return {path.name for path in kept_code.folder().rglob("*") if path.is_file()}


def test_torch_keeps_code_there_unless_somebody_named_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    kept_code.keep()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    kept_code.keep()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"


def test_without_a_place_to_write_torch_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache folder would lie below a file."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMIX_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    kept_code.keep()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_what_was_not_used_for_long_goes_first() -> None:
    """600 bytes of at most 500: the oldest go until 250 are left, but none of this hour."""
    for name, size, hours in (("a/1", 200, 9), ("b/2", 200, 8), ("c/3", 100, 7), ("d/4", 100, 0)):
        put(name, size, 3600 * hours)
    assert kept_code.size() == (4, 600)
    kept_code.trim(600)
    assert left() == {"1", "2", "3", "4"}
    kept_code.trim(500)
    assert left() == {"3", "4"}
    kept_code.trim(50)
    assert left() == {"4"}


def test_the_command_shows_and_clears_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    put("a/1", 3 << 20, 0)
    data = tmp_path / "digits-0" / "x.npy"
    data.parent.mkdir()
    data.touch()
    assert fedmix(monkeypatch, "cache", "show") == 0
    assert "compiled steps: 1 files, 3.0 MiB" in capsys.readouterr().out
    assert fedmix(monkeypatch, "cache", "clear") == 0
    assert "removed 3.0 MiB" in capsys.readouterr().out
    assert data.exists()
    assert fedmix(monkeypatch, "cache", "show", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(tmp_path), "compiled": {"files": 0, "bytes": 0}
    }  # fmt: skip


def test_vector_instructions_that_work_are_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = [], iter([False, True, True])

    def probe(kind: object, code: str) -> bool:
        asked.append((str(kind), code))
        return next(answers)

    monkeypatch.setattr(VecISA, "check_build", probe)
    for _ in range(2):
        kept_code.probe_once()
    kind = VecAVX2()
    assert [kind.check_build("a") for _ in range(3)] == [False, True, True]
    assert kind.check_build("b")
    assert asked == [("avx2", "a"), ("avx2", "a"), ("avx2", "b")]
