"""The command line. Only typer is imported here; torch and the rest wait until a command needs them."""

from fedmix.cli.app import main

__all__ = ["main"]
