"""Runs the tests of flower/ under each version of Flower that fedmix[flower] allows:

    python -m tests.flower.matrix [PYTEST ARGUMENTS]      # make flower-matrix

Each version is installed, without what it depends on, into a folder of its own that is found
before the environment's. The environment itself stays as it is.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("1.40.0", "1.41.0", "1.42.0")


def main(arguments: list[str]) -> int:
    """Run the tests under each version, and return 1 if they fail under one."""
    results = dict[str, int]()
    with tempfile.TemporaryDirectory() as folder:
        for version in VERSIONS:
            there = Path(folder) / version
            install = ["pip", "install", "--quiet", "--no-deps", "--target", str(there)]
            subprocess.run([sys.executable, "-m", *install, f"flwr=={version}"], check=True)
            before = os.environ.get("PYTHONPATH")
            env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(there), before]))}
            said = "import flwr; print(flwr.__version__)"
            found = subprocess.run([sys.executable, "-c", said], env=env, stdout=subprocess.PIPE)
            assert found.stdout.decode().strip() == version, found.stdout
            print(f"Flower {version}", flush=True)
            tests = ["pytest", *(arguments or ["tests/flower"])]
            results[version] = subprocess.run([sys.executable, "-m", *tests], env=env).returncode
    for version, code in results.items():
        print(f"Flower {version}: {'failed' if code else 'all passed'}")
    return int(any(results.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
