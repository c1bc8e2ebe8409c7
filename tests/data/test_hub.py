"""Downloads, by the hub's own client, from a server on this machine that speaks the hub's protocol
and can misbehave.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

from fedmix.core.errors import DataError
from fedmix.data.hub import parquet

REPO, REVISION = "someone/numbers", "refs/convert/parquet"
CONTENT = {
    "plain/train/0000.parquet": bytes(range(256)) * 4000,
    "plain/train/0001.parquet": b"second" * 1000,
    "plain/test/0000.parquet": b"test" * 10,
    "plain/train/notes.txt": b"not a table",
}
COMMIT = "0123456789abcdef" * 2 + "01234567"


class Hub(ThreadingHTTPServer):
    """Serves CONTENT; `most` bytes of a body are sent before the line is cut, `cuts` times."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.log: list[tuple[str, str, str | None]] = []
        self.most, self.cuts, self.listed_extra = 0, 0, 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        """The client may hang up first."""


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.log.append((self.command, path, self.headers.get("Range")))
        assert self.headers.get("Authorization") is None
        tree, resolve = (
            f"/api/datasets/{REPO}/tree/{REVISION}/",
            f"/datasets/{REPO}/resolve/{REVISION}/",
        )
        if path.startswith(tree):
            folder = path.removeprefix(tree) + "/"
            entries = [
                {
                    "type": "file",
                    "oid": "0" * 40,
                    "size": len(body) + self.server.listed_extra,
                    "path": name,
                }
                for name, body in CONTENT.items()
                if name.startswith(folder)
            ]
            if entries:
                self.send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})
            else:
                self.send(
                    404,
                    b"{}",
                    {"X-Error-Code": "EntryNotFound", "X-Error-Message": "no such folder"},
                )
        elif path.startswith(resolve) and path.removeprefix(resolve) in CONTENT:
            self.send_file(path.removeprefix(resolve))
        else:
            self.send(
                404,
                b"{}",
                {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no such repository"},
            )

    def send_file(self, name: str) -> None:
        body = CONTENT[name]
        headers = {
            "ETag": f'"{abs(hash(body)):x}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        cut = self.command == "GET" and self.server.cuts > 0 and len(body) > self.server.most
        self.server.cuts -= cut
        self.send(
            206 if wanted else 200,
            body[start:],
            headers,
            max(0, self.server.most - start) if cut else None,
        )

    def send(
        self, status: int, body: bytes, headers: dict[str, str], only: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:only])
            self.close_connection = only is not None


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server, an empty cache, no waiting between retries, and no way to any other machine."""
    connect = socket.socket.connect

    def only_here(self: socket.socket, address: Any) -> None:
        assert address[0] == "127.0.0.1", f"tried to reach {address}"
        connect(self, address)

    server = Hub()
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    monkeypatch.setattr(socket.socket, "connect", only_here)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_must_not_travel")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("FEDMIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDMIX_DATA", raising=False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def blobs(tmp_path: Path) -> list[Path]:
    """Everything the client keeps as a whole file."""
    return [p for p in (tmp_path / "hf").rglob("*") if p.is_file() and ".parquet" in p.name]


@pytest.mark.usefixtures("hub")
def test_downloads_the_listed_files() -> None:
    files = parquet(REPO, "plain", "train")
    assert [f.name for f in files] == ["0000.parquet", "0001.parquet"]
    assert [f.read_bytes() for f in files] == [CONTENT[f"plain/train/{f.name}"] for f in files]


def test_later_starts_need_no_network(hub: Hub) -> None:
    first = parquet(REPO, "plain", "train")
    asked = len(hub.log)
    assert parquet(REPO, "plain", "train") == first
    assert len(hub.log) == asked


@pytest.mark.usefixtures("hub")
def test_a_file_that_was_lost_is_fetched_again() -> None:
    lost = parquet(REPO, "plain", "train")[1]
    lost.resolve().unlink()
    lost.unlink(missing_ok=True)
    assert parquet(REPO, "plain", "train")[1].read_bytes() == CONTENT["plain/train/0001.parquet"]


def test_a_cut_line_resumes(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        constants, "DOWNLOAD_CHUNK_SIZE", 2**16
    )  # less is lost with a line, as the files are small
    hub.most, hub.cuts = 300_000, 1
    files = parquet(REPO, "plain", "train")
    assert files[0].read_bytes() == CONTENT["plain/train/0000.parquet"]
    gets = [
        wanted
        for kind, path, wanted in hub.log
        if kind == "GET" and path.endswith("train/0000.parquet")
    ]
    assert gets == [None, f"bytes={300_000 // 2**16 * 2**16}-"]  # whole chunks are kept


def test_a_line_that_is_always_cut_is_an_error(hub: Hub, tmp_path: Path) -> None:
    hub.most, hub.cuts = 300_000, 10**9
    with pytest.raises(
        DataError, match=r"cannot download someone/numbers \(plain/train\) from http://127.*; check"
    ):
        parquet(REPO, "plain", "train")
    assert blobs(tmp_path) == []
    hub.cuts = 0
    assert parquet(REPO, "plain", "train")[0].read_bytes() == CONTENT["plain/train/0000.parquet"]


def test_a_size_that_differs_from_the_listing_is_an_error(hub: Hub) -> None:
    hub.listed_extra = 1
    with pytest.raises(DataError, match=r"plain/test/0000.parquet is not of 41 bytes"):
        parquet(REPO, "plain", "test")
    hub.listed_extra = 0
    assert parquet(REPO, "plain", "test")[0].read_bytes() == CONTENT["plain/test/0000.parquet"]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(("repo", "split"), [("someone/else", "train"), (REPO, "validation")])
def test_what_the_hub_does_not_have(repo: str, split: str) -> None:
    with pytest.raises(
        DataError, match=rf"cannot download {repo} \(plain/{split}\).*set FEDMIX_DATA"
    ):
        parquet(repo, "plain", split)


@pytest.mark.usefixtures("hub")
def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: refused
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(DataError, match="check the connection and start again"):
            parquet(REPO, "plain", "train")


@pytest.mark.usefixtures("hub")
def test_errors_are_one_line() -> None:
    with pytest.raises(DataError) as caught:
        parquet("someone/else", "plain", "train")
    assert "\n" not in str(caught.value)


def test_a_named_folder_is_used_and_nothing_else(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mirror" / REPO / "plain" / "train"
    folder.mkdir(parents=True)
    for name in ("0001.parquet", "0000.parquet", "readme.txt"):
        (folder / name).touch()
    monkeypatch.setenv("FEDMIX_DATA", str(tmp_path / "mirror"))
    assert [p.name for p in parquet(REPO, "plain", "train")] == ["0000.parquet", "0001.parquet"]
    with pytest.raises(
        DataError,
        match=r"no parquet files in .*mirror/someone/numbers/plain/test; .*unset FEDMIX_DATA",
    ):
        parquet(REPO, "plain", "test")
    with pytest.raises(DataError, match=r"no parquet files in .*elsewhere.*; .*leave out --data"):
        parquet(REPO, "plain", "train", root=tmp_path / "elsewhere")
    assert hub.log == []
