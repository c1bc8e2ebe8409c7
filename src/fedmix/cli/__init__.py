"""The command line.

Only typer is imported at first; torch and the rest wait until a command needs them.
"""

import sys


def main() -> None:
    """The entry point, which says what to install where the command line's packages are missing."""
    try:
        from fedmix.cli.app import main as run
    except ModuleNotFoundError as error:
        print(
            f"fedmix: the command line needs {error.name}; run: pip install 'fedmix[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    run()
