"""Options that several commands share, and parsers of option values shared by commands."""

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import Command as ClickCommand
from click import Context, HelpFormatter
from typer.core import TyperCommand, TyperGroup

from fedmix.core.errors import BadInput
from fedmix.core.nearest import nearest

if TYPE_CHECKING:
    from fedmix.exchange.settings import GroupSize

PAPERS_FORM = (
    "fedmix-logits trains wherever it was run; fedmix is the form that the paper prints, to "
    "compare with the paper, and diverges on some data."
)


class Group(TyperGroup):
    """Commands, of which the nearest is named for one that does not exist."""

    def get_command(self, ctx: Context, cmd_name: str) -> ClickCommand | None:
        """Return a command; raise BadInput if there is none of this name."""
        found = super().get_command(ctx, cmd_name)
        if found is None and not ctx.resilient_parsing:
            near = nearest(cmd_name, self.commands)
            raise BadInput(
                f"{ctx.command_path} has no command {cmd_name!r}; "
                + (f"did you mean {near}? " if near else "")
                + f"'{ctx.command_path} --help' lists them"
            )
        return found


class Command(TyperCommand):
    """A command whose help names what is registered, which is looked up only for the help."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        from fedmix.core.registry import ALGORITHMS, TRACKERS
        from fedmix.experiment.presets import PRESETS, RECOMMENDED

        names = {
            "presets": ", ".join(PRESETS),
            "algorithms": ", ".join(ALGORITHMS),
            "recommended": RECOMMENDED,
            "trackers": ", ".join(TRACKERS),
        }
        for param in self.params:
            if isinstance(said := getattr(param, "help", None), str):
                for name, known in names.items():
                    said = said.replace(f"{{{name}}}", known)
                vars(param)["help"] = said
        super().format_help(ctx, formatter)


What = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE.toml",
        help="A preset ({presets}) or a file.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting by dotted path; several values, split by commas, are a sweep.",
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        help="{algorithms}; by default {recommended}, or the file's. '+prox' after it adds "
        f"FedProx's term, 'hidden-' before it mixes hidden states. {PAPERS_FORM}"
    ),
]
Algorithms = Annotated[str, typer.Option(help=f"Names, split by commas. {PAPERS_FORM}")]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.")]
Out = Annotated[Path, typer.Option(help="The folder in which each run gets a folder.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")]
Devices = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, cuda:1, ...; of several, as in cuda:0,cuda:1, each of --jobs gets one."
    ),
]
Engine = Annotated[str | None, typer.Option(help="vectorised or sequential.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "--processes", metavar="N",
        help="Divide each round's clients among N processes; with --device cuda, among N GPUs.",
    ),
]  # fmt: skip
Restarts = Annotated[
    int,
    typer.Option(
        "--max-restarts", metavar="N", min=0,
        help="If a worker is killed or hangs, go on from the checkpoint, N times at most.",
    ),
]  # fmt: skip
Seeds = Annotated[int, typer.Option(help="How many seeds, from --seed on.")]
Seed = Annotated[int | None, typer.Option(help="The (first) seed; 0, or the file's.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="A folder with the hub's parquet files, instead of a download."),
]
Delta = Annotated[float, typer.Option(help="δ, well below 1 over the number of samples.")]
Curves = Annotated[Path | None, typer.Option(help="Write the curves there.")]
Results = Annotated[Path | None, typer.Option(help="Write the table there.")]
Report = Annotated[Path | None, typer.Option(help="Write the whole report there.")]
Jobs = Annotated[
    int,
    typer.Option(metavar="N", help="Up to N runs at once, each a process; they share the device."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Track = Annotated[
    str,
    typer.Option(metavar="NAMES", help="Also log to some of these, split by commas: {trackers}."),
]
Json = Annotated[
    bool, typer.Option("--json", help="The result as JSON on standard output, for scripts.")
]


def listed(text: str) -> list[str]:
    """Split words at commas; return each once, in order."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def devices(text: str | None) -> tuple[str | None, list[int]]:
    """Parse a value of `--device`: the device of the runs, and the GPUs to hand out to jobs.

    Raises:
        BadInput: Of several devices, one is no GPU with a number.
    """
    if text is None or "," not in text:
        return text, []
    named = [re.fullmatch(r"cuda:([0-9]{1,4})", name) for name in listed(text)]
    if not all(named):
        raise BadInput(f"--device {text!r}: several devices must be GPUs, such as cuda:0,cuda:1")
    return "cuda", [int(one[1]) for one in named if one]


def group_size(text: str) -> "GroupSize":
    """Parse a value of `--m`: a number of samples, a fraction of a client's samples, or all.

    Raises:
        BadInput: it is none of these.
    """
    try:
        return "all" if text == "all" else float(text) if "." in text else int(text)
    except ValueError:
        raise BadInput(
            f"--m {text!r} is not a number of samples, a fraction of a client's samples, or 'all'"
        ) from None


def command_line() -> str:
    """Return the command line of this process, as it can be typed again."""
    return shlex.join(["fedmix", *sys.argv[1:]])
