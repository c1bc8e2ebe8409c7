"""The documentation builds, lists every setting and loads nothing; what is in it runs."""

import ast
import builtins
import html
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click import Command, Context, Group
from typer.main import get_command
from typer.testing import CliRunner

import fedmix
from fedmix import data, exchange, flower, functional, models, objectives, privacy, report
from fedmix.cli import output, reproduce
from fedmix.cli.app import app
from fedmix.experiment.spec import settings
from fedmix.paper import TABLES
from fedmix.paper.study import Study
from fedmix.runs.run import Run

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [ROOT / "README.md", *PAGES]
FOLDER = "runs/digits-fedmix-logits-s0-1a2b3c4d5e"  # stands for the folder of a run


def shell_lines() -> list[str]:
    """Every line of a shell block that calls fedmix, in the order of the pages."""
    blocks = [
        block
        for page in TEXTS
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(), re.S)
    ]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [re.sub(" +#.*", "", line) for line in lines if line.startswith("fedmix ")]


LINES = shell_lines()
SMALL = [
    line
    for line in LINES
    if line.split()[1] in ("run", "compare") and line.split()[2] in ("digits", "mine.toml")
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--site-dir",
            folder,
        ],  # --quiet would also silence strict
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    built = {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")}
    assert {page.relative_to(ROOT / "docs").with_suffix("") for page in PAGES} <= built
    assert not list(site.rglob("*.py"))


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(r"<a\s[^>]*>", "", page.read_text())  # a link loads nothing until it is taken
        assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", text), page.name


def test_everything_public_is_in_the_reference(site: Path) -> None:
    anchors = {
        name
        for page in (site / "api").glob("*.html")
        for name in re.findall(r'id="(fedmix[^"]*)"', page.read_text())
    }
    pages = {page.stem for page in (site / "api").glob("*.html")}
    for module in (fedmix, data, models, objectives, exchange, functional, privacy, report, flower):
        inside = {n.rpartition(".")[2] for n in anchors if n.startswith(module.__name__)}
        assert not set(module.__all__) - inside - pages


def test_what_is_copied_is_python(site: Path) -> None:
    """Without the prompts and lines that `docs/site.css` leaves out."""
    hidden = '<span class="(?:go|gt|gr)">'
    blocks = [
        (page, block)
        for page in site.rglob("*.html")
        for block in re.findall(r'<div class="language-pycon.*?</code>', page.read_text(), re.S)
    ]
    assert len(blocks) > 40
    for page, block in blocks:
        lines = re.findall(r'<span id="[^"]*__span[^"]*">(.*?)\n</span>', block, re.S)
        kept = [
            re.sub('<span class="gp">.*?</span>', "", n) for n in lines if not re.search(hidden, n)
        ]
        code = html.unescape(re.sub("<.*?>", "", "\n".join(kept)))
        assert code.strip()
        compile(code + "\n", page.name, "exec")
        if page.parent.name == "api":  # where each block is on its own
            assert not undefined(code), code


def undefined(code: str) -> set[str]:
    """Names that a piece of code uses and does not make."""
    nodes = list(ast.walk(ast.parse(code)))
    made = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name.id for name in names} - made - set(dir(builtins))


# Blocks of the other pages need frameworks that are not installed here.
@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/first-run.md"])
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block.replace("epochs=5", "epochs=1"), page, "exec"), {})


def test_settings_page_has_every_setting_where_it_belongs(site: Path) -> None:
    text = html.unescape((site / "settings.html").read_text())
    parts = {part.split('"')[0]: part for part in re.split(r'<h[23] id="', text)[1:]}
    for path, _, default, name in settings():
        section = path.rpartition(".")[0]
        part = parts[f"{section}-{name}" if name else section or "the-run"]
        [row] = [row for row in part.split("<tr>") if f"<td><code>{path}</code>" in row]
        shown = {"True": "true", "False": "false"}.get(str(default), str(default))
        if isinstance(default, tuple):
            shown = str(list(default))
        assert default is None or shown == "(required)" or f"; <code>{shown}</code>" in row, row
        assert ("required" in row) == (shown == "(required)")
        explanation = re.sub("<.*?>", "", row.split("</td>")[1])
        assert len(explanation.strip()) > 10, row


def test_there_are_commands_to_test() -> None:
    assert len(SMALL) >= 7
    kinds = {
        "run",
        "compare",
        "reproduce",
        "resume",
        "report",
        "pack",
        "data",
        "bench",
        "cache",
        "federation",
        "privacy",
        "audit",
        "settings",
    }
    assert {line.split()[1] for line in LINES} == kinds


@pytest.mark.parametrize("line", LINES)
def test_commands_parse(line: str) -> None:
    command: Command = get_command(app)
    name, args = "fedmix", shlex.split(line)[1:]
    while isinstance(command, Group):
        found = command.get_command(Context(command), args[0])
        assert found is not None, f"there is no command {args[0]}"
        command, name, args = found, args[0], args[1:]
    command.make_context(name, args)  # raises on an unknown option or a missing argument


@pytest.mark.parametrize(
    "line", [line for line in LINES if line.split()[1] == "reproduce" and "--list" not in line]
)
def test_commands_of_tables_are_valid(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything up to the training."""
    asked: list[Study] = []
    monkeypatch.setattr(reproduce, "_reproduce", lambda study, *_, **__: asked.append(study))
    assert CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False).exit_code == 0
    assert asked[0].experiments()


def test_every_table_is_listed(site: Path) -> None:
    text = html.unescape((site / "reproduction" / "tables.html").read_text())
    for table in TABLES.values():
        assert f"<code>{table.name}</code><br>{table.source}" in text


@pytest.mark.parametrize(
    "line", [line for line in LINES if line.split()[1] in ("run", "compare") and line not in SMALL]
)
def test_commands_on_large_data_are_valid(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything up to the training."""
    asked: list[Run] = []

    def note(todo: list[Run], *_: Any, **__: Any) -> list[Path]:
        asked.extend(todo)
        return []

    monkeypatch.setattr(output, "run_all", note)
    assert CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False).exit_code == 0
    assert asked


def test_commands_on_digits_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which a reader meets them, with a single round and less data."""
    monkeypatch.chdir(tmp_path)
    [text] = re.findall(
        r"```toml\n(# mine.toml\n.*?)```", (ROOT / "docs" / "first-run.md").read_text(), re.S
    )
    Path("mine.toml").write_text(text)
    shown = [
        line
        for line in LINES
        if line.split()[1] == "settings"
        or line.split()[1:3] == ["data", "list"]
        or line.split()[1:4] == ["data", "show", "digits"]
    ]
    for line in [f"{line} --rounds 1 --set data.local_share=0.4" for line in SMALL] + shown:
        assert (
            CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False).exit_code == 0
        ), line
    run = next(Path("runs").glob("digits-fedmix-logits-s0-*"))
    published = str(ROOT / "docs" / "results")
    for line in [line for line in LINES if line.split()[1] in ("resume", "report", "pack")]:
        here = line.replace(FOLDER, str(run)).replace("docs/results", published)
        args = shlex.split(here.replace("--rounds 60", "--rounds 2"))[1:]
        assert CliRunner().invoke(app, args, catch_exceptions=False).exit_code == 0, line
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert all(Path(name).stat().st_size for name in ("curves.png", "table.csv", "report.html"))
