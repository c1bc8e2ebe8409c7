"""Runs every program on every workload, and writes the results to one file and one table.

Each program runs in an environment of its own, which is made first (4 GB in all, some minutes), or
with --here in this Python, with what it has installed.

    python benchmarks/peers/run.py
    python benchmarks/peers/run.py --tools plain,fedmix --workloads lenet
    python benchmarks/peers/run.py --here --device cuda --tools plain,fedmix,pfl
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = {
    "plain": "torch",
    "fedmix": "torch",
    "flower": "flower",
    "pfl": "pfl",
    "fedjax": "fedjax",
}
ALGORITHMS = {"fedavg": list(ENVIRONMENTS), "fedmix": ["plain", "fedmix"]}
START, END = "<!-- results: filled in by run.py --readme -->", "<!-- end of results -->"
LIMIT_S = 1800
# distance from the plain loop, relative to its update; rounding gives 1e-6 (lenet) to 1e-2 (vgg)
TOO_FAR = 0.1
Record = dict[str, Any]


def settings(tool: str, workload: str, device: str, cores: int) -> list[tuple[int, int]]:
    """Numbers of workers, and of threads of each, to try.

    These are one worker with one thread, one with all cores, and one for each core if the program
    has workers. One thread can win with small models, where threads wait for each other; with the
    large model it is not tried.
    """
    if device != "cpu" or cores == 1:
        return [(1, 1)]
    tried = [(1, cores)]
    if workload == "lenet":
        tried.append((1, 1))
    if tool != "plain":
        tried.append((cores, 1))
    return tried


def python_of(environment: str) -> str:
    """The interpreter of an environment, which is made again if its requirements have changed."""
    wanted = HERE / f"requirements-{environment}.txt"
    folder = HERE / ".venvs" / environment
    installed = folder / "requirements.txt"
    python = folder / "bin" / "python"
    if not installed.exists() or installed.read_text() != wanted.read_text():
        print(f"making the environment {environment}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run(
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "-r",
                wanted,
            ],
            check=True,
        )
        shutil.copy(wanted, installed)
    return str(python)


def run(python: str, tool: str, workers: int, threads: int, out: Path, rest: list[str]) -> bool:
    """Run one script; return False if it failed. Its output goes to a log beside its record."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    several = tool in ("pfl", "fedmix") and workers > 1
    command = [
        python,
        *(launcher if several else []),
        str(HERE / f"{tool}_.py" if tool != "plain" else HERE / "plain.py"),
    ]
    command += ["--workers", str(workers), "--threads", str(threads), "--out", str(out), *rest]
    environment = {
        # threads that spin while they wait slow down whatever else runs
        "OMP_WAIT_POLICY": "PASSIVE",
        "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    } | os.environ | {
        "OMP_NUM_THREADS": str(threads),
        # each run compiles again, so that its warm-up includes that time
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
        ),
        "PEERS_STARTED": str(time.time()),
    }  # fmt: skip
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
    failed = []
    for workload in args.workloads:
        for algorithm, tools in ALGORITHMS.items():
            for tool in (t for t in tools if t in args.tools):
                python = sys.executable if args.here else python_of(ENVIRONMENTS[tool])
                for workers, threads in settings(tool, workload, args.device, args.cores):
                    name = f"{workload}-{algorithm}-{tool}-{workers}x{threads}"
                    rest = [
                        "--workload",
                        workload,
                        "--algorithm",
                        algorithm,
                        "--device",
                        args.device,
                    ]
                    began = time.time()
                    fine = run(python, tool, workers, threads, folder / f"{name}.json", rest)
                    print(
                        f"{name}: {time.time() - began:.0f} s{'' if fine else ' FAILED'}",
                        flush=True,
                    )
                    failed += [] if fine else [name]
    checker = sys.executable if args.here else python_of("torch")
    source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [checker, HERE / "check.py", folder], env=os.environ | {"PYTHONPATH": source}, check=True
    )
    return failed


def fastest(tried: list[Record]) -> list[Record]:
    """Each program's fastest settings, with the speed-up over the plain loop's fastest."""
    best: dict[tuple[str, ...], Record] = {}
    for record in tried:
        key = record["workload"], record["algorithm"], record["variant"]
        if key not in best or record["ms_per_step"] < best[key]["ms_per_step"]:
            best[key] = record
    for (workload, algorithm, _), record in best.items():
        plain = best.get((workload, algorithm, "plain"))
        if plain:
            record["speedup"] = plain["ms_per_step"] / record["ms_per_step"]
    return list(best.values())


def said(*command: str) -> str:
    """Output of a command; empty if there is no such command or it fails."""
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def document(tried: list[Record], failed: list[str], started: datetime) -> Record:
    """The file that benchmarks/README.md describes.

    `tried` holds all settings, `records` the fastest of each program.
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
        "records": fastest(tried),
        "tried": tried,
    }


def table(result: Record) -> str:
    """The records as a Markdown table, fastest first."""
    head = (
        "| workload | algorithm | program | workers x threads | ms a step | lowest-highest | times "
        "plain | start + warm-up, s | "
        "loss | distance from plain |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    rows = sorted(
        result["records"], key=lambda r: (r["workload"], r["algorithm"], r["ms_per_step"])
    )
    versions = {"flower": "flwr", "pfl": "pfl", "fedjax": "fedjax"}
    lines = []
    for r in rows:
        name = r["variant"]
        program = f"{name} {r['versions'][versions[name]]}" if name in versions else name
        cells = [
            r["workload"], r["algorithm"], program, f"{r['workers']} x {r['threads']}",
            f"{r['ms_per_step']:.1f}", f"{r['low']:.1f}-{r['high']:.1f}",
            f"{r['speedup']:.2f}" if "speedup" in r else "",
            f"{r['startup_s']:.0f} + {r['warmup_s']:.0f}",
            f"{r['loss_before']:.2f} → {r['loss']:.2f}",
            f"{r['distance']:.1e}" if "distance" in r else "",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |\n")
    machine, day = result["machine"], result["started"][:10]
    where = f"{machine['cores']} cores of {machine['cpu']}" + (
        f", {machine['gpu']}" if "gpu" in machine else ""
    )
    return (
        f"{head}{''.join(lines)}\n{where}, {day}, commit {result['commit']}, "
        f"`{result['command']}`.\n"
    )


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
    parser.add_argument("--tools", type=some_of(*ENVIRONMENTS), default=list(ENVIRONMENTS))
    parser.add_argument("--workloads", type=some_of("lenet", "vgg"), default=["lenet", "vgg"])
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
        "--json",
        type=Path,
        default=HERE / ".runs" / "peers.json",
        help="where the merged results go",
    )
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    args = parser.parse_args()
    started = datetime.now(UTC)
    folder = HERE / ".runs" / "records"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    args.json.parent.mkdir(parents=True, exist_ok=True)  # fail now, not after hours
    failed = measure(args, folder)
    tried = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    failed += [
        f"{name} (trained to other weights)"
        for name, record in tried.items()
        if record.get("distance", 0) > TOO_FAR
    ]
    result = document(list(tried.values()), failed, started)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    if args.readme:
        readme = HERE / "README.md"
        before, _, rest = readme.read_text().partition(START)
        readme.write_text(f"{before}{START}\n\n{table(result)}\n{END}{rest.partition(END)[2]}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; what they printed is in {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
