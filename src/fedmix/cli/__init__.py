"""The command line: `app.py` makes it, and every command has a file named after it."""

import sys


def main() -> None:
    """Run the command line; say what to install if a package that it needs is missing."""
    if sys.platform == "win32":
        print("fedmix: Windows is not supported; use Linux, macOS or WSL", file=sys.stderr)
        sys.exit(2)
    try:
        from fedmix.cli.app import main as run
    except ModuleNotFoundError as error:
        print(
            f"fedmix: the command line needs {error.name}; run: pip install 'fedmix[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    run()
