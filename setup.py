"""The long description is README.md with links that work where its repository is not.

They lead to `Repository` of [project.urls]. Without that address their words stay and links go.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)")


def long_description(text: str, repository: str | None) -> str:
    """Make relative links and images of Markdown absolute, or leave them out."""

    def absolute(link: re.Match[str]) -> str:
        image, words, path = link.groups()
        if repository is None:
            return "" if image else words
        return f"{image}[{words}]({repository}/{'raw' if image else 'blob'}/main/{path})"

    return LINK.sub(absolute, text)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    setup(
        long_description=long_description(
            (ROOT / "README.md").read_text(), project["urls"].get("Repository")
        ),
        long_description_content_type="text/markdown",
    )
