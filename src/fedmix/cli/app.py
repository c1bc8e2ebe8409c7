"""The `fedmix` command: its commands, and errors as messages with exit codes.

Only typer is imported at first; each command imports torch and the rest when it runs.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from fedmix import __version__
from fedmix.cli import (
    audit,
    bench,
    cache,
    compare,
    data,
    federation,
    pack,
    privacy,
    report,
    reproduce,
    resume,
    run,
    settings,
)
from fedmix.cli.options import Group
from fedmix.core.errors import FedmixError, Lost, format_warning
from fedmix.core.files import printable

app = typer.Typer(
    name="fedmix",
    cls=Group,
    help="Mean-augmented federated learning: train, compare and report FedMix and its relatives.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Example:  fedmix compare digits --seeds 3",
)
for command in (run, compare, reproduce, audit, resume, report, pack, privacy, settings):
    app.add_typer(command.app)
app.add_typer(data.app, name="data", cls=Group)
app.add_typer(bench.app, name="bench", cls=Group)
app.add_typer(cache.app, name="cache", cls=Group)
app.add_typer(federation.app, name="federation", cls=Group)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedmix {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of `fedmix` itself; its help is that of `app`."""


def main() -> None:
    """Run the command line and exit; an error of fedmix is one sentence and an exit code.

    In one of several processes that a launcher started, the first runs it with the others' help.
    """
    if os.environ.get("WORLD_SIZE", "1") in ("", "0", "1"):
        _main(app)
    else:
        from fedmix.cli.launch import as_rank

        _main(lambda: as_rank(lambda: _main(app)))


def _main(command: Callable[[], None]) -> None:
    warnings.formatwarning = format_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # prints ? where an encoding lacks ε
    try:
        try:
            command()
        finally:
            print(end="", flush=True)  # here, so that an error is caught below; stdout may be None
    except FedmixError as error:
        if not isinstance(error, Lost) or "FEDMIX_WORKERS" not in os.environ:
            print(f"fedmix: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("fedmix: stopped", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # wherever a path is first used
            longest = max(Path(str(error.filename)).parts, key=len)
            print(
                f"fedmix: the name {printable(longest[:20])}... is too long for a file",
                file=sys.stderr,
            )
            sys.exit(2)
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        if error.errno == errno.ENOSPC:  # EPIPE: the reader has seen enough, no need to say so
            print(
                "fedmix: no space is left where the result goes; free some and run the same again",
                file=sys.stderr,
            )
        # Python flushes standard output once more at exit, which must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
