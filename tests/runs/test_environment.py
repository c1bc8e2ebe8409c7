"""Where something ran."""

import subprocess
from pathlib import Path

import pytest
import torch

from fedmix.runs import environment


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    return subprocess.run(
        ["git", "-C", str(folder), *named, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_commit_is_that_of_a_checkout_and_not_of_a_repository_around_an_installed_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(folder: Path) -> str:
        monkeypatch.setattr(environment, "__file__", str(folder / "environment.py"))
        return environment.environment(torch.device("cpu"), "")["commit"]

    project, alone = tmp_path / "project", tmp_path / "alone"
    for folder in (project, project / ".venv", alone):
        folder.mkdir()
        (folder / "environment.py").touch()
    git(project, "init")
    git(project, "add", "environment.py")
    git(project, "commit", "-m", "all")
    assert commit(project) == git(project, "rev-parse", "--short=12", "HEAD")
    assert commit(project / ".venv") == commit(alone) == ""


@pytest.mark.parametrize(
    ("threads", "said"), [(1, "cpu (A chip, 1 thread)"), (2, "cpu (A chip, 2 threads)")]
)
def test_a_cpu_is_named_with_its_threads(
    threads: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "cpu", lambda: "A chip")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert environment.environment(torch.device("cpu"), "")["device"] == said
