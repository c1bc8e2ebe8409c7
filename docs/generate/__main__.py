"""`python -m docs.generate`: write all generated parts and pictures, and say what changed."""

from pathlib import Path
from tempfile import TemporaryDirectory

from docs.generate import ROOT, filled, pages
from docs.generate.pictures import PICTURES
from fedmix.core.files import write_whole


def write(path: Path, content: bytes) -> None:
    """Write a file if that changes it."""
    if not path.exists() or path.read_bytes() != content:
        write_whole(path, content)
        print(f"wrote {path.relative_to(ROOT)}")


for page in pages():
    write(page, filled(page.read_text()).encode())
with TemporaryDirectory() as folder:
    for name, draw in PICTURES.items():
        draw(Path(folder) / name)
        write(ROOT / "docs" / "images" / name, (Path(folder) / name).read_bytes())
