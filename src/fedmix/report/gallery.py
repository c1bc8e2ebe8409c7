"""Exchanged means and single samples as pictures inside the page."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmix.report.groups import Group, among
from fedmix.report.load import RunRecord
from fedmix.report.metrics import Array

PICTURES = 12  # of means, and of samples
GALLERIES = 12


@dataclass(frozen=True)
class Shown:
    """The pictures of one way of exchanging, and the groups that use it."""

    labels: str
    seed: str
    m: str
    noise: str
    means: list[str]
    samples: list[str]


def galleries(groups: Sequence[Group]) -> list[Shown]:
    """Return a gallery for each way of partitioning and exchanging data, at most GALLERIES.

    The pictures are those of the first seed that has some.
    """
    ways: dict[frozenset[tuple[str, str]], tuple[RunRecord, list[Group]]] = {}
    for group in groups:
        run = next((run for run in group.runs if run.gallery), None)
        if run:
            way = frozenset(
                (k, v) for k, v in group.settings.items() if k.startswith(("data.", "exchange."))
            )
            ways.setdefault(way, (run, []))[1].append(group)
    return [_shown(run, among(same)) for run, same in list(ways.values())[:GALLERIES]]


def _shown(run: RunRecord, labels: str) -> Shown:
    assert run.gallery is not None
    means, samples = (
        [png(picture) for picture in some[:PICTURES]]
        for some in (run.gallery.means, run.gallery.samples)
    )
    m, noise = (run.settings.get(f"exchange.{name}", "") for name in ("m", "noise"))
    return Shown(labels, run.seed, m, noise if noise not in ("0", "0.0") else "", means, samples)


def png(picture: Array) -> str:
    """Return a (C, H, W) picture with values in [0, 1] as a data URL."""
    from PIL import Image

    pixels = np.round(255 * picture).astype(np.uint8)
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1))
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
