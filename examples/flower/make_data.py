"""Writes handwritten digits as files of four clients and a test file, to try the example.

Run it with

    python make_data.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np

from fedmix.data import digits


def main(folder: Path, clients: int = 4) -> None:
    """Give every client digits of three classes, as vectors of 64 grey levels."""
    data = digits(clients, classes_per_client=3)
    folder.mkdir(parents=True, exist_ok=True)
    for client in range(clients):
        rows = data.clients[client]
        np.savez(
            folder / f"client-{client}.npz",
            x=data.units(data.x[rows]).reshape(-1, 64),
            y=data.y[rows],
        )
    np.savez(folder / "test.npz", x=data.units(data.held_out.x).reshape(-1, 64), y=data.held_out.y)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
