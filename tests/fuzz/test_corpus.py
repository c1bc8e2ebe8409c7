"""Readers of what comes from elsewhere take it or refuse it: kept inputs, and changed copies of
them.
"""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save, save_file

from fedmix import BadInput
from fedmix.core.files import read_within, write_whole
from fedmix.experiment.presets import experiment
from fedmix.runs.run import Run
from tests.fuzz.targets import TARGETS, hold

CORPUS = Path(__file__).parent / "corpus"
SEEDS = {
    target: [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    for target in TARGETS
}
WORDS = (
    *(b"-1", b"9" * 25, b"1e999", b"NaN", b"null", b"[[", b"{"),
    *(b'"', b"\n", b"\\u0000", b"\xff", b"\0" * 8, b"../", b"0x" + b"F" * 40),
)


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_kept_inputs(path: Path) -> None:
    hold(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_a_right_input_is_taken(target: str) -> None:
    assert hold(target, (CORPUS / target / "right").read_bytes())


@st.composite
def changed(draw: st.DrawFn) -> tuple[str, bytes]:
    """An input of the corpus with some spans cut out and words put in their place."""
    target = draw(st.sampled_from(sorted(TARGETS)))
    data = draw(st.sampled_from(SEEDS[target]))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 12))
        word = draw(st.sampled_from(WORDS) | st.binary(max_size=4))
        data = data[:start] + word + data[start + cut :]
    return target, data


@settings(max_examples=300)
@given(changed())
def test_changed_inputs(made: tuple[str, bytes]) -> None:
    hold(*made)


WRONG = (
    torch.zeros(0),
    torch.zeros(3, 3),
    torch.tensor([1, 2, 3]),
    torch.tensor(-1),
    torch.tensor(2**40),
    torch.full((2,), 2**40),
)


def test_every_part_of_a_state_is_looked_at() -> None:
    """Each tensor of a right checkpoint missing, or of another kind: taken if it can be used,
    refused in a sentence else.
    """
    right = load((CORPUS / "checkpoint" / "right").read_bytes())
    taken = 0
    for name in right:
        rest = {other: tensor for other, tensor in right.items() if other != name}
        assert not hold("checkpoint", save(rest)), name
        taken += sum(hold("checkpoint", save(rest | {name: wrong})) for wrong in WRONG)
    assert taken < 20  # large numbers of rounds, bytes or versions are numbers too


# Folders from elsewhere


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").symlink_to(precious)
    with pytest.raises(BadInput, match="is a link to a file elsewhere"):
        Run(experiment("digits"), folder).execute()
    assert precious.read_text() == "kept"


def test_files_beside_are_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / f".new.{os.getpid()}.partial").symlink_to(precious)
    write_whole(tmp_path / "new", b"content")
    assert (precious.read_text(), (tmp_path / "new").read_text()) == ("kept", "content")


def test_links_out_of_a_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("{}")
    (tmp_path / "summary.json").symlink_to(tmp_path / "there")
    with pytest.raises(BadInput, match="is a link to a file elsewhere"):
        read_within(tmp_path / "summary.json", 100, "restore it", links=False)
    with pytest.raises(BadInput, match="is a link to a file elsewhere"):
        assert Run(experiment("digits"), tmp_path).summary


def test_a_checkpoint_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    """The means that it names lie there and would be read, were it not for their name."""
    folder = tmp_path / "run"
    folder.mkdir()
    save_file(
        {"round": torch.tensor(1)},
        folder / "checkpoint.safetensors",
        {"means": "../means-1.safetensors"},
    )
    save_file({"x": torch.zeros(1)}, tmp_path / "means-1.safetensors")
    with pytest.raises(BadInput, match=r"its means are in \.\./means-1"):
        Run(experiment("digits"), folder).restored()
