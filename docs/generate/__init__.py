"""Writes the generated parts of the documentation; `make results` runs it.

A page holds a part between two markers, which are comments that readers do not see:

    <!-- results: cifar10 begin -->
    ...
    <!-- results: cifar10 end -->

`results` are tables of the published runs in docs/results, `small` those of runs at small scale;
`audit`, `beyond`, `privacy` and `speed` those of the pages of these names, from benchmarks/results
and docs/results; `settings` come from the package. What stands between the markers is written anew;
`tests/test_generated.py` fails where it is not what would be written.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import audit, beyond, privacy, results, settings, small, speed

ROOT = Path(__file__).parents[2]
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "results": results.PARTS,
    "audit": audit.PARTS,
    "beyond": beyond.PARTS,
    "privacy": privacy.PARTS,
    "small": small.PARTS,
    "settings": settings.PARTS,
    "speed": speed.PARTS,
}
MARKED = re.compile(
    r"(?P<begin><!-- (?P<kind>\w+): (?P<name>[\w-]+) begin -->\n)"
    r"(?P<old>.*?)"
    r"(?P<end><!-- (?P=kind): (?P=name) end -->)",
    re.DOTALL,
)


def pages() -> list[Path]:
    """Return all pages that may have generated parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(page: str) -> str:
    """Return the text of a page with its generated parts written anew.

    Raises:
        KeyError: A marker names a part that does not exist.
    """
    return MARKED.sub(
        lambda found: (
            f"{found['begin']}\n{PARTS[found['kind']][found['name']]()}\n\n{found['end']}"
        ),
        page,
    )
