"""The state of a run after a round, from which it continues: checkpoint.safetensors.

Released means are large and change rarely, so each version of them has a file of its own. It is
written before the checkpoint that names it, and removed after the checkpoint that names the next.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedmix.core.errors import BadInput
from fedmix.core.files import printable, write_whole

FILE = "checkpoint.safetensors"
MEANS = re.compile(r"means-[0-9]{1,19}\.safetensors")
RELEASED = ("exchange.owner", "exchange.x", "exchange.y")  # tensors in the file of means


class Checkpoint:
    """The last checkpoint in a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._means: str | None = None  # the file of released means that is known to be complete

    def load(self) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """Return the state and the values saved with it; None if there is no checkpoint.

        Raises:
            BadInput: A file is damaged.
        """
        if not (self.folder / FILE).exists():
            return None
        state, about = self._read(FILE)
        self._means = about.get("means")
        if self._means:
            if not MEANS.fullmatch(self._means):  # a path must not lead out of the folder
                raise self.damaged(f"its means are in {printable(self._means)}")
            state |= self._read(self._means)[0]
        return state, about

    def rounds(self) -> int:
        """Return how many rounds are done; 0 without a checkpoint that can be read."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.folder / FILE, framework="pt") as file:
                return int(file.get_tensor("round"))
        except (SafetensorError, OSError, ValueError, RuntimeError):
            return 0

    def save(self, state: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Write a state, and the released means in it if their version is new.

        Args:
            state: The state of a federation.
            about: Texts to save with it.
        """
        from safetensors.torch import save

        rest, about = {name: t.contiguous() for name, t in state.items()}, dict(about)
        released = {name: rest.pop(name) for name in RELEASED if name in rest}
        if released:
            about["means"] = f"means-{int(rest['exchange.version'])}.safetensors"
            if about["means"] != self._means:
                write_whole(self.folder / about["means"], save(released))
                self._means = about["means"]
        write_whole(self.folder / FILE, save(rest, about))
        self.drop_old_means()

    def drop_old_means(self) -> None:
        """Remove versions of the means that the checkpoint does not name."""
        for old in self.folder.glob("means-*.safetensors"):
            if old.name != self._means:
                old.unlink()

    def damaged(self, reason: str, name: str = FILE) -> BadInput:
        """Return the error for a file that cannot be used."""
        why = printable(reason.strip().split("\n")[0])
        return BadInput(
            f"{self.folder / name} is damaged ({why}); delete checkpoint.safetensors to start this "
            "run anew"
        )

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        from safetensors import SafetensorError, safe_open

        path = self.folder / name
        if path.is_symlink():
            raise self.damaged("it is a link to a file elsewhere", name)
        unreadable = (  # torch may raise any of these for a tensor's type or shape
            SafetensorError,
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RuntimeError,
        )
        try:
            with safe_open(path, framework="pt") as file:
                names = file.keys()  # the file is no dict and cannot be iterated
                return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
        except unreadable as error:
            raise self.damaged(str(error), name) from None
