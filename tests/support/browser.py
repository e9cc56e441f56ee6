"""Headless Chromium over a pipe.

Opens a page, runs scripts in it, takes screenshots, counts its network requests.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
)


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in a separate browser, which a context manager closes."""

    def __init__(
        self, width: int = 1400, height: int = 1000, dark: bool = False, phone: bool = False
    ):
        self.width, self.height, self.dark, self.phone = width, height, dark, phone
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._number = 0

    def __enter__(self) -> Browser:
        executable = find_browser()
        if executable is None:
            raise RuntimeError(
                f"There is no Chromium here: none of {', '.join(NAMES)} is on the path."
            )
        self._profile = tempfile.mkdtemp()
        ours = os.pipe()
        theirs = os.pipe()

        def hand_over() -> None:
            read = os.dup(ours[0])
            write = os.dup(theirs[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        command = [executable, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            preexec_fn=hand_over,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._out, self._in = os.fdopen(ours[1], "wb", buffering=0), os.fdopen(theirs[0], "rb")
        self._session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        size = {
            "width": self.width,
            "height": self.height,
            "deviceScaleFactor": 1,
            "mobile": self.phone,
        }
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._in.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile are recorded."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(self, page: Path | str) -> None:
        """Go to a file or an address."""
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        result = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path, full: bool = False) -> None:
        result = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(result["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(
            base64.b64decode(self.ask("Page.printToPDF", printBackground=True)["data"])
        )

    def _next(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("The browser ended.")
            message += byte
        event = json.loads(message)
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(
                params["exceptionDetails"].get("exception", {}).get("description", "?")
            )
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        return event
