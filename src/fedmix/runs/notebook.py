"""Progress of a run in a notebook: one line that changes in place."""

from typing import Any

from fedmix.runs.progress import Board, Progress
from fedmix.runs.run import Spec

CELLS = 24  # of a bar


class NotebookProgress(Progress):
    """Shows the progress of a run below its cell; the arguments are those of `Progress`."""

    def __init__(self, title: str, experiment: Spec, begun: int = 0) -> None:
        board = Board([(experiment, begun)], quiet=True)
        board.live = True  # what moves is the line here
        super().__init__(title, experiment, begun, board=board)
        from IPython.display import display

        self.now = ""
        self.line = display(self._shown(), raw=True, display_id=True)

    def update(self, line: dict[str, Any]) -> None:
        """Show the metrics of a round."""
        super().update(line)
        left = self.board.time_left(self.task)
        self.say("  ".join(filter(None, [*self.said[1:], left])))

    def say(self, text: str) -> None:
        """Show a text beside the bar."""
        self.now = text
        self.line.update(self._shown(), raw=True)

    def note(self, text: str) -> None:
        """Print a line below it."""
        print(f"{self.title}  {text}")

    def _shown(self) -> dict[str, str]:
        full = CELLS * self.done // self.total
        bar = "█" * full + "░" * (CELLS - full)
        return {"text/plain": f"{self.title}  {bar}  {self.done}/{self.total}  {self.now}"}
