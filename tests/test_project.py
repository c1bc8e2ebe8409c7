"""What stands around the code agrees with it: package, workflows, citation, version."""

import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import fedmix
from tests.wheel import build

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MARKDOWN = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build(tmp_path_factory.mktemp("wheel")))


def described(wheel: zipfile.ZipFile) -> Message:
    [path] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    return Parser().parsestr(wheel.read(path).decode())


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    package = Path(fedmix.__file__).parent
    files = {
        f"fedmix/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == files


def test_the_wheel_is_described(wheel: zipfile.ZipFile) -> None:
    about = described(wheel)
    assert about["Version"] == fedmix.__version__
    assert about["Description-Content-Type"] == "text/markdown"
    assert about["License-Expression"] == "Apache-2.0"
    text = about.get_payload()
    assert isinstance(text, str)
    assert text.startswith("# fedmix")
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []


def test_links_lead_to_the_repository_or_nowhere() -> None:
    long_description = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["long_description"]
    text = "![A chart](docs/a.svg) and [words](docs/a.md), [far](https://a.example/b), [here](#c)"
    assert long_description(text, "https://b.example/r") == (
        "![A chart](https://b.example/r/raw/main/docs/a.svg) and "
        "[words](https://b.example/r/blob/main/docs/a.md), [far](https://a.example/b), [here](#c)"
    )
    assert long_description(text, None) == " and words, [far](https://a.example/b), [here](#c)"


def long_lines(text: str) -> list[int]:
    """Numbers of the lines of prose in Markdown that have more than 100 characters.

    Code, tables, and lines that are an address and little else may be longer.
    """
    found, code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        prose = not (code or fence or line.lstrip().startswith("|"))
        if prose and len(re.sub(r"https?://\S+", "", line)) > 100:
            found.append(number)
    return found


def test_long_lines_are_found() -> None:
    long = "w" * 101
    assert long_lines(f"{long}\n\n| {long} |\n```sh\n{long}\n```\n- {long}") == [1, 7]
    assert long_lines(f"{'w' * 100}\nhttps://a.example/{long}") == []


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_has_no_line_over_100_characters(path: Path) -> None:
    assert long_lines(path.read_text()) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 800


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fedmix.__version__
    assert citation["license"] == PROJECT["license"]


def test_pythons_that_are_named_are_tested() -> None:
    [jobs] = [yaml.safe_load(path.read_text())["jobs"] for path in WORKFLOWS]
    tested = jobs["tests"]["strategy"]["matrix"]["python"]
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert tested == named
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_there_is(path: Path) -> None:
    commands = [
        step["run"] for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"] if "run" in step
    ]  # fmt: skip
    made = [line.split()[1] for line in "\n".join(commands).splitlines() if "make " in line]
    assert made
    assert set(made) <= TARGETS


@pytest.mark.parametrize(
    ("schema", "files"),
    [("github-workflows", WORKFLOWS), ("citation-file-format", [ROOT / "CITATION.cff"])],
)
def test_files_follow_their_schemas(schema: str, files: list[Path]) -> None:
    """The schemas come with check-jsonschema."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hooks_before_a_commit_run_what_make_installs() -> None:
    """Each hook's program is one that the extra `dev` brings."""
    [repo] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repo["hooks"]:
        folder, program = hook["entry"].split()[0].rsplit("/", 1)
        assert folder == ".venv/bin"
        assert (Path(sys.executable).parent / program).exists()
        assert hook["language"] == "system"
