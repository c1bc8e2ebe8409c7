"""`fedmix bench` as a user types it."""

import getpass
import json
import os
import platform
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from fedmix.bench import scale
from tests.test_cli import fedmix

TINY = ["--clients", "2", "--batch", "3", "--steps", "1", "--repeats", "2"]


def test_steps_prints_a_table_and_writes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps.json"
    args = [
        "--workloads",
        "digits",
        "--variants",
        "plain,sequential,vectorised",
        *TINY,
        "--out",
        path,
    ]
    assert fedmix(monkeypatch, "bench", "steps", *args) == 0
    out, err = capsys.readouterr()
    for word in (
        "digits fedavg, 2x3",
        "digits fedmix, 2x3",
        "plain",
        "sequential",
        "vectorised",
        "1.00x",
    ):
        assert word in out
    assert "1/18  digits fedavg plain: warming up" in err
    content = json.loads(path.read_text())
    assert content["command"] == (
        "fedmix bench steps --workloads digits --algorithms fedavg,fedmix --variants "
        "plain,sequential,vectorised "
        "--device cpu --repeats 2 --clients 2 --batch 3 --steps 1 --precision tf32"
    )
    assert set(content["versions"]) >= {"fedmix", "python", "torch", "numpy"}
    assert content["machine"]["cpu"]
    assert content["machine"]["cores"] >= 1
    assert [(r["algorithm"], r["variant"]) for r in content["records"]] == [
        (algorithm, variant)
        for algorithm in ("fedavg", "fedmix")
        for variant in ("plain", "sequential", "vectorised")
    ]
    for record in content["records"]:
        assert 0 < record["low"] <= record["ms_per_step"] <= record["high"]
        assert (record["clients"], record["batch"], record["steps"], record["repeats"]) == (
            2,
            3,
            1,
            2,
        )
    secrets = [str(tmp_path), str(Path.home()), platform.node(), f"/{getpass.getuser()}/"]
    assert not [word for word in secrets if len(word) > 3 and word in path.read_text()]


def test_algorithms_without_a_plain_loop_are_measured_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [
        "--workloads",
        "digits",
        "--algorithms",
        "localmix+prox",
        "--variants",
        "plain,vectorised",
        *TINY,
        "--quiet",
    ]
    assert fedmix(monkeypatch, "bench", "steps", *args) == 0
    out, err = capsys.readouterr()
    assert "vectorised" in out
    assert "vs plain" not in out
    assert err == ""


def test_show_draws_and_tabulates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"workload": "lenet", "algorithm": "fedavg", "low": 1.0, "high": 9.0}
    path, chart = tmp_path / "steps.json", tmp_path / "speed.svg"
    rows = [
        record | {"variant": "plain", "ms_per_step": 8.0},
        record | {"variant": "fast", "ms_per_step": 2.0},
    ]
    path.write_text(json.dumps({"records": rows}))
    assert fedmix(monkeypatch, "bench", "show", path, "--chart", chart, "--markdown") == 0
    assert "| lenet fedavg | fast | 2.00 | 1.00–9.00 | 4.00x |" in capsys.readouterr().out
    assert "<svg" in chart.read_text()
    assert fedmix(monkeypatch, "bench", "show", path, "--variants", "fast", "--markdown") == 0
    assert "| plain |" not in capsys.readouterr().out
    assert fedmix(monkeypatch, "bench", "show", path, "--variants", "slow") == 2
    assert "choose one of plain, fast" in capsys.readouterr().err


def test_scale_writes_a_file_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(scale.AXES, "clients", (1, 2))
    path, plot = tmp_path / "scale.json", tmp_path / "scale.png"
    args = [
        "--axes",
        "clients",
        "--algorithms",
        "fedavg",
        "--repeats",
        "1",
        "--limit",
        "900",
        "--out",
        path,
        "--plot",
        plot,
        "--json",
    ]
    assert fedmix(monkeypatch, "bench", "scale", *args) == 0
    content = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out) == content
    assert content["kind"] == "scale"
    assert [r["value"] for r in content["records"]] == [1, 2]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["steps", "--workloads", "resnet"],
            "--workloads 'resnet' is unknown; did you mean lenet? Known are digits, lenet, vgg",
        ),
        (["steps", "--workloads", ""], "--workloads '' is unknown"),
        (
            ["steps", "--variants", "fast"],
            "--variants 'fast' is unknown; choose one of plain, default",
        ),
        (["steps", "--algorithms", "fedsgd"], "algorithm 'fedsgd' is unknown"),
        (["steps", "--algorithms", ","], "--algorithms is empty"),
        (
            ["steps", "--algorithms", "localmix", "--variants", "plain"],
            "the plain loop knows fedavg, naivemix, fedmix",
        ),
        (["steps", "--device", "tpu"], "device 'tpu' cannot be used"),
        (["steps", "--repeats", "0"], "--repeats 0: at least one"),
        (["steps", "--steps", "0"], "--steps 0: at least one"),
        (["steps", "--clients", "0"], "clients_per_round=0 is no number of clients"),
        (
            ["steps", "--out", "gone/a.json"],
            "gone/a.json cannot be written: there is no folder gone",
        ),
        (
            ["scale", "--axes", "depth"],
            "--axes 'depth' is unknown; did you mean width? Known are clients",
        ),
        (["scale", "--limit", "0"], "--limit 0.0: give a number of seconds above 0"),
        (["scale", "--plot", "a.pdf"], "a.pdf: a picture can be written as .png or .svg"),
        (["show", "gone.json"], "gone.json cannot be read"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    args: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedmix(monkeypatch, "bench", *args, *(["--quiet"] if args[0] != "show" else [])) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedmix: ")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def interrupted(args: list[str], at: str) -> tuple[int, str, str]:
    """Ctrl-C once a line of progress holds `at`: exit code, output, and messages.

    In the background a shell has it ignored.
    """
    code = (
        "from fedmix.runs import progress; progress.LINE_SECONDS = 0.0; from fedmix.cli.app "
        "import main; main()"
    )
    command = [sys.executable, "-c", code, "bench", *args]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as process:
        assert process.stderr is not None
        messages = ""
        for line in process.stderr:
            messages += line
            if at in line:
                process.send_signal(signal.SIGINT)
                break
        out, rest = process.communicate(timeout=120)
    return process.returncode, out, messages + rest


def test_ctrl_c_shows_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    args = [
        "steps",
        "--workloads",
        "digits",
        "--algorithms",
        "fedavg",
        "--variants",
        "plain",
        "--out",
        str(path),
    ]
    code, out, messages = interrupted([*args, *TINY, "--repeats", "100000"], "plain: 2 of")
    assert code == 130
    assert re.search(r"plain +[\d.]+ ", out)
    assert messages.endswith(
        "fedmix: stopped; this is what was measured so far, and no file was written\n"
    )
    assert "Traceback" not in messages
    assert not path.exists()


def test_ctrl_c_in_a_sweep_leaves_no_process_behind() -> None:
    repeats = str(10**9 + os.getpid())  # by which its process can be told from all others
    args = ["scale", "--axes", "clients", "--algorithms", "fedavg", "--repeats", repeats]
    code, _, messages = interrupted(args, "clients per round: 1")
    assert code == 130
    assert (
        repeats
        not in subprocess.run(
            ["ps", "-eo", "args"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert messages.endswith("fedmix: stopped; nothing was measured yet, and no file was written\n")
    assert "Traceback" not in messages


@pytest.mark.parametrize(
    "command", [["bench"], ["bench", "steps"], ["bench", "scale"], ["bench", "show"]]
)
def test_help(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedmix(monkeypatch, *command, "--help") == 0
    assert "Example:" in capsys.readouterr().out
