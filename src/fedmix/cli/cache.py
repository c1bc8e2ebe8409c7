"""`fedmix cache show` and `clear`."""

import sys

import typer

from fedmix.cli import options

app = typer.Typer(
    help="The cache folder: decoded data, and compiled steps that later starts use again.",
    no_args_is_help=True,
    epilog="Example:  fedmix cache show",
)


@app.command(epilog="Example:  fedmix cache show")
def show(as_json: options.Json = False) -> None:
    """Where the cache is, and its compiled steps; `fedmix data list` shows what data are here."""
    import json

    from fedmix.data.cache import location
    from fedmix.runs.progress import console
    from fedmix.training.engines import kept_code

    files, size = kept_code.size()
    if as_json:
        said = {"folder": str(location()), "compiled": {"files": files, "bytes": size}}
        print(json.dumps(said))
        return
    out = console(sys.stdout)
    out.print(f"{location()}", soft_wrap=True)
    out.print(
        f"compiled steps: {files} files, {size / 2**20:.1f} MiB "
        f"(at most {kept_code.LARGEST >> 20} MiB are kept)"
    )


@app.command(epilog="Example:  fedmix cache clear")
def clear() -> None:
    """Remove compiled steps; the next run compiles its own again. Decoded data stay."""
    from fedmix.runs.progress import console
    from fedmix.training.engines import kept_code

    _, before = kept_code.size()
    kept_code.clear()
    _, left = kept_code.size()  # of another user, or in use
    console(sys.stdout).print(f"removed {(before - left) / 2**20:.1f} MiB of compiled steps")
