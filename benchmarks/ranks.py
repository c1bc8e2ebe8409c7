"""How much faster several ranks train than one, each with one thread, on this machine.

Numbers of ranks take turns, each turn in new processes; two rounds of each warm up. A round is
timed from its plan to the average that all ranks have.

    python benchmarks/ranks.py lenet --steps 210
    python benchmarks/ranks.py vgg --steps 10 --ranks 1,2 --turns 2 --rounds 2
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost"]


def measure(workload: str, algorithm: str, steps: int, rounds: int) -> None:
    """Train some rounds as one of the ranks; the first prints their seconds."""
    import fedmix  # noqa: F401  # before torch, for how threads wait
    from fedmix.bench.cases import WORKLOADS, Size, federation
    from fedmix.core.ranks import here

    built = federation(WORKLOADS[workload], algorithm, "compiled", Size(steps=steps), "cpu")
    start, seconds = built.params, []
    for _ in range(2 + rounds):
        built.params = start
        began = time.perf_counter()
        built._train_round()
        seconds.append(time.perf_counter() - began)
    if here().rank == 0:
        print(json.dumps(seconds[2:]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--steps", type=int, default=20, help="of a client in a round")
    parser.add_argument("--ranks", default="1,2", help="numbers of them, split by commas")
    parser.add_argument("--rounds", type=int, default=5, help="timed in each turn")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    if "RANK" in os.environ:
        measure(args.workload, args.algorithm, args.steps, args.rounds)
        return
    counts = [int(count) for count in args.ranks.split(",")]
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(args.turns):
        for count in counts:
            command = [sys.executable, *LAUNCH, f"--nproc-per-node={count}", *sys.argv]
            said = subprocess.run(
                command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
                text=True, check=True,
            )  # fmt: skip
            found[count] += json.loads(said.stdout.splitlines()[-1])
    print(f"{args.workload} {args.algorithm}, {args.steps} steps of a client in a round")
    print("| ranks | seconds a round | fastest-slowest | times as fast |")
    print("|--:|--:|--:|--:|")
    for count, seconds in found.items():
        one, mine = statistics.median(found[counts[0]]), statistics.median(seconds)
        spread = f"{min(seconds):.3f}-{max(seconds):.3f}"
        print(f"| {count} | {mine:.3f} | {spread} | {one / mine:.2f} |", flush=True)


if __name__ == "__main__":
    main()
