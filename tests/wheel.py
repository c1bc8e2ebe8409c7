"""Builds the wheel, installs it into a new environment, and runs the tests where no source is:

    python -m tests.wheel [PYTEST ARGUMENTS]      # make wheel-test

The environment is thrown away; the wheel stays in dist/. `PIP="uv pip"` installs by uv.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
# What tests read beside the package; test_project.py is about the source tree.
BESIDE = (
    "tests", "docs", "examples", "benchmarks", "deploy", "conftest.py", "pyproject.toml",
    "constraints.txt", "mkdocs.yml", "README.md", "CHANGELOG.md", "CITATION.cff", ".github",
)  # fmt: skip


def build(into: Path) -> Path:
    """Build the wheel of a copy of what makes it, so that no earlier build is mixed in."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", there / "src", ignore=ignored)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, there)
        into.mkdir(parents=True, exist_ok=True)
        code = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
        made = [sys.executable, "-c", code, str(into.resolve())]
        subprocess.run(made, cwd=there, check=True, capture_output=True)
    return max(into.glob("fedmix-*.whl"), key=lambda path: path.stat().st_mtime)


def main(arguments: list[str]) -> int:
    """Run the tests with the installed wheel, and return pytest's exit code."""
    wheel = build(ROOT / "dist").resolve()
    with tempfile.TemporaryDirectory() as folder:
        there, environment = Path(folder) / "there", Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        pip = shlex.split(os.environ.get("PIP", f"{python} -m pip"))
        asked = ["install", "--quiet", "-c", str(ROOT / "constraints.txt"), f"{wheel}[dev]"]
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "VIRTUAL_ENV": str(environment), "PATH": path}
        subprocess.run([*pip, *asked], check=True, env=env)
        there.mkdir()
        for name in BESIDE:
            one = ROOT / name
            (shutil.copytree if one.is_dir() else shutil.copy)(one, there / name)
        said = "import fedmix; print(fedmix.__version__, fedmix.__file__)"
        shown = subprocess.check_output([python, "-c", said], cwd=there, env=env, text=True)
        print(shown, end="", flush=True)
        assert str(environment) in shown, "the tests would not run with the wheel"
        tests = arguments or [
            "--pyargs", "tests", "docs", "fedmix", "--ignore=tests/test_project.py",
        ]  # fmt: skip
        return subprocess.run([python, "-m", "pytest", *tests], cwd=there, env=env).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
