"""Runs every program on every workload, and writes the results to one file.

Each program runs in an environment of its own, which is made first (6 GB in all, some minutes), or
with --here in this Python, with what it has installed. Each runs as its documentation says, without
settings of how it computes; with --tuned the others also with workers and threads that may suit
them better.

    python benchmarks/peers/run.py
    python benchmarks/peers/run.py --tools plain,fedmix --workloads lenet --algorithms fedavg
    python benchmarks/peers/run.py --here --device cuda --tools plain,fedmix,pfl
    python benchmarks/peers/run.py --table a.json b.json
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import venv
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = {
    "plain": "torch",
    "fedmix": "torch",
    "fedmix-script": "torch",
    "flower": "flower",
    "pfl": "pfl",
    "fedjax": "fedjax",
    "fluke": "fluke",
    "blazefl": "blazefl",
}
# What uses all cores without being told to; BlazeFL must be told, and its documentation says how.
SEVERAL = ("fedmix", "flower", "blazefl")
TORCHRUN = ("fedmix", "pfl")
ALGORITHMS = {"fedavg": list(ENVIRONMENTS), "fedmix": ["plain", "fedmix", "fedmix-script"]}
START, END = "<!-- results: filled in by run.py --table -->", "<!-- end of results -->"
LIMIT_S = 1800
# BlazeFL asks for Python 3.12 or newer; what is used of it runs on 3.11 as well
OPTIONS = {"blazefl": ["--ignore-requires-python"]}
# distance from the plain loop, relative to its update; rounding gives 1e-6 (lenet) to 1e-2 (vgg)
TOO_FAR = 0.1
Record = dict[str, Any]


def settings(tool: str, device: str, cores: int, *, tuned: bool) -> list[tuple[int, int]]:
    """Numbers of workers, and of threads of each, to run with; no threads: what a user gets.

    `tuned` adds one worker with one thread, one with all cores, and one for each core.
    """
    several = tool in SEVERAL and device == "cpu"
    found = [(cores if several else 1, 0)]
    if tuned and device == "cpu" and not tool.startswith("fedmix"):
        found += [(1, 1), (1, cores)]
        found += [(cores, 1)] if tool not in ("plain", "fluke") else []
    return found


def python_of(environment: str, folder: Path) -> str:
    """The interpreter of an environment, which is made again if its requirements have changed."""
    wanted = HERE / f"requirements-{environment}.txt"
    folder = folder / environment
    installed = folder / "requirements.txt"
    python = folder / "bin" / "python"
    if not installed.exists() or installed.read_text() != wanted.read_text():
        print(f"making the environment {environment}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*install, "--no-deps", *OPTIONS.get(environment, ()), "-r", wanted], check=True
        )
        shutil.copy(wanted, installed)
    return str(python)


def run(python: str, tool: str, workers: int, threads: int, out: Path, rest: list[str]) -> bool:
    """Run one script; return False if it failed. Its output goes to a log beside its record."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    script = HERE / ("plain.py" if tool == "plain" else f"{tool.partition('-')[0]}_.py")
    command = [python, *(launcher if tool in TORCHRUN and workers > 1 else []), str(script)]
    command += ["--workers", str(workers), "--threads", str(threads), "--out", str(out), *rest]
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    } | os.environ | {
        # each run compiles again, so that its warm-up includes that time
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
        ),
        "PEERS_STARTED": str(time.time()),
    }  # fmt: skip
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    with out.with_suffix(".log").open("w") as log:
        try:
            done = subprocess.run(
                command, env=environment, stdout=log, stderr=log, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0 and out.exists()


def measure(args: argparse.Namespace, folder: Path) -> list[str]:
    """Run everything that was requested; return what failed."""

    def python(environment: str) -> str:
        return sys.executable if args.here else python_of(environment, args.environments)

    failed = []
    for turn, workload in product(range(args.turns), args.workloads):
        for algorithm in args.algorithms:
            for tool in (t for t in ALGORITHMS[algorithm] if t in args.tools):
                interpreter = python(ENVIRONMENTS[tool])
                for workers, threads in settings(tool, args.device, args.cores, tuned=args.tuned):
                    name = f"{workload}-{algorithm}-{tool}-{workers}x{threads or 'default'}-{turn}"
                    rest = ["--workload", workload, "--algorithm", algorithm]
                    rest += ["--device", args.device, "--variant", tool]
                    began = time.time()
                    fine = run(interpreter, tool, workers, threads, folder / f"{name}.json", rest)
                    took = f"{time.time() - began:.0f} s"
                    print(f"{name}: {took}{'' if fine else ' FAILED'}", flush=True)
                    failed += [] if fine else [name]
    source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    checked = [python("torch"), HERE / "check.py", folder]
    subprocess.run(checked, env=os.environ | {"PYTHONPATH": source}, check=True)
    return failed


def compared(tried: list[Record]) -> list[Record]:
    """Each program by default, beside the plain loop and its own fastest setting.

    Of several turns the fastest counts, since others may use the machine now and then.
    """
    default: dict[tuple[str, ...], Record] = {}
    fastest: dict[tuple[str, ...], Record] = {}
    for record in sorted(tried, key=lambda r: r["ms_per_step"], reverse=True):
        fastest[key_of(record)] = record
        if record["default"]:
            default[key_of(record)] = record
    for (workload, algorithm, _), record in default.items():
        best = fastest[key_of(record)]
        record["fastest_ms"] = best["ms_per_step"]
        record["fastest"] = (
            "default" if best["default"] else f"{best['workers']} x {best['threads']}"
        )
        if base := default.get((workload, algorithm, "plain")):
            record["speedup"] = base["ms_per_step"] / record["ms_per_step"]
            record["fastest_speedup"] = base["ms_per_step"] / best["ms_per_step"]
    return list(default.values())


def key_of(record: Record) -> tuple[str, ...]:
    return record["workload"], record["algorithm"], record["variant"]


def said(*command: str) -> str:
    """Output of a command; empty if there is no such command or it fails."""
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def document(tried: list[Record], failed: list[str], started: datetime) -> Record:
    """The file that benchmarks/README.md describes.

    `tried` holds all settings, `records` what each program is by default.
    """
    gpus = said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    machine = {
        "cpu": said("sed", "-n", "/^model name/{s/^[^:]*: //p;q}", "/proc/cpuinfo"),
        "cores": os.cpu_count(),
    }
    return {
        "kind": "steps",
        "command": " ".join(["python", "benchmarks/peers/run.py", *sys.argv[1:]]),
        "started": started.isoformat(timespec="seconds"),
        "commit": said("git", "rev-parse", "--short=12", "HEAD"),
        "machine": machine | ({"gpu": gpus[0]} if gpus else {}),
        "notes": [f"failed: {name}" for name in failed],
        "records": compared(tried),
        "tried": tried,
    }


def table(results: list[Record]) -> str:
    """The records of several files as a Markdown table, fastest first."""
    lines = [
        "| workload | algorithm | program | ms a step | lowest-highest | times plain | tuned, ms | "
        "tuned, times plain | start + warm-up, s | loss | distance from plain |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    packages = {"flower": "flwr", "fluke": "fluke-fl"}
    for r in sorted(
        (r for result in results for r in result["records"]),
        key=lambda r: (r["workload"], r["algorithm"], r["ms_per_step"]),
    ):
        name = r["variant"]
        version = r["versions"].get(packages.get(name, name), "")
        tuned = ("", "")
        if r["fastest"] != "default":
            tuned = (
                f"{r['fastest_ms']:.1f} ({r['fastest']})", f"{r.get('fastest_speedup', 0):.2f}",
            )  # fmt: skip
        cells = [
            r["workload"], r["algorithm"], f"{name} {version}".strip(),
            f"{r['ms_per_step']:.1f}", f"{r['low']:.1f}-{r['high']:.1f}",
            f"{r['speedup']:.2f}" if "speedup" in r else "", *tuned,
            f"{r['startup_s']:.0f} + {r['warmup_s']:.0f}",
            f"{r['loss_before']:.2f} → {r['loss']:.2f}",
            f"{r['distance']:.1e}" if "distance" in r else "",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    for result in results:
        machine, gpu = result["machine"], result["machine"].get("gpu")
        where = f"{machine['cores']} cores of {machine['cpu']}" + (f", {gpu}" if gpu else "")
        made = f"{where}, {result['started'][:10]}, commit {result['commit']}"
        lines += ["", textwrap.fill(f"{made}, `{result['command']}`.", 100, break_long_words=False)]
    return "\n".join(lines) + "\n"


def some_of(*known: str) -> Callable[[str], list[str]]:
    """Make a parser of lists of known names, such as "plain,fedmix"."""

    def read(text: str) -> list[str]:
        unknown = set(text.split(",")) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{min(unknown)!r} is unknown; choose among {','.join(known)}"
            )
        return text.split(",")

    return read


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    workloads = ("lenet", "vgg", "lstm")
    parser.add_argument("--tools", type=some_of(*ENVIRONMENTS), default=list(ENVIRONMENTS))
    parser.add_argument("--workloads", type=some_of(*workloads), default=workloads)
    parser.add_argument("--algorithms", type=some_of(*ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--tuned", action="store_true", help="also with other workers and threads")
    parser.add_argument("--turns", type=int, default=1, help="how often to run each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--cores", type=int, default=os.cpu_count() or 1, help="number of cores to use"
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="run everything in this Python instead of making environments",
    )
    parser.add_argument(
        "--environments", type=Path, default=HERE / ".venvs", help="where environments are made"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE / ".runs" / "peers.json",
        help="where the results go",
    )
    parser.add_argument(
        "--table", type=Path, nargs="+", help="put the table of these results into README.md"
    )
    args = parser.parse_args()
    if args.table:
        filled = table([json.loads(path.read_text()) for path in args.table])
        readme = HERE / "README.md"
        before, _, rest = readme.read_text().partition(START)
        readme.write_text(f"{before}{START}\n\n{filled}\n{END}{rest.partition(END)[2]}")
        return
    started = datetime.now(UTC)
    folder = HERE / ".runs" / "records"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)  # fail now, not after hours
    failed = measure(args, folder)
    tried = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    failed += [
        f"{name} (trained to other weights)"
        for name, record in tried.items()
        if record.get("distance", 0) > TOO_FAR
    ]
    result = document(list(tried.values()), failed, started)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table([result]))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; what they printed is in {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
