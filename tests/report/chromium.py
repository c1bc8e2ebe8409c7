"""A headless Chromium, spoken to over pipes in the DevTools protocol."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and answers on 4.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


class Page:
    """One tab: what it logged, what it asked for, and what it can be asked."""

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back, self.number, self.session, self.rest = to, back, 0, "", b""
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer, noting events on the way."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params} | (
            {"sessionId": self.session} if self.session else {}
        )
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, path: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Load a file in a window of that size."""
        self.problems, self.requests = [], []
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", url=path.absolute().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, path: Path) -> None:
        """The page as printed."""
        answer = self.call(
            "Page.printToPDF",
            printBackground=False,
            preferCSSPageSize=False,
            paperWidth=8.27,
            paperHeight=11.69,
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.back], [], [], 60)[0], "the browser says nothing"
            piece = os.read(self.back, 1 << 20)
            assert piece, "the browser ended"
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown" or (
            method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")
        ):
            self.problems.append(json.dumps(params))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return event


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A browser with a fresh profile; ended with the block."""
    assert BROWSER is not None
    theirs, to = os.pipe()
    back, out = os.pipe()
    high = [
        fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, out)
    ]  # so that neither is in the way of the other
    command = [
        sys.executable,
        "-c",
        START,
        *map(str, high),
        BROWSER,
        *OPTIONS,
        f"--user-data-dir={profile}",
    ]
    process = subprocess.Popen(
        command, pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for end in (theirs, out, *high):
        os.close(end)
    try:
        yield Page(to, back)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(back)
