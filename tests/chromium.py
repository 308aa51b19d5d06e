"""A headless Chromium at the end of a pipe: just enough of its protocol to load a file and watch what it does."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_READ, _WRITE = 3, 4  # the file descriptors that --remote-debugging-pipe speaks on


def find() -> str | None:
    """The path of a Chromium on this machine, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Tab:
    """One page. `events` holds everything that the browser told about it, in order."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest = to, back, b""
        self._last, self._session = 0, None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call one method and wait for its answer; what arrives before it goes to `events`."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = os.read(self._back, 1 << 20)
            if not chunk:
                raise RuntimeError("Chromium went away")
            self._rest += chunk
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True
    ) -> None:
        """Load a file at a window size and wait until its charts are drawn."""
        self.events.clear()
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=path.as_uri())
        self._until("Page.loadEventFired")
        if script:
            self._until_drawn()

    def _until(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._receive())

    def _until_drawn(self, patience_s: float = 60.0) -> None:
        end = time.monotonic() + patience_s
        missing = "[...document.querySelectorAll('.chart.drawn .live')].filter(e => !e.querySelector('svg')).length"
        while self.evaluate(missing) and time.monotonic() < end:
            time.sleep(0.05)

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself left out."""
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent if one.get("type") != "Document"]

    def complaints(self) -> list[str]:
        """Errors and warnings that the page or the browser logged, and exceptions nobody caught."""
        words = []
        for event in self.events:
            params = event.get("params", {})
            match event.get("method"):
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                    words.append(str([one.get("value", one.get("description")) for one in params["args"]]))
                case "Runtime.exceptionThrown":
                    words.append(str(params["exceptionDetails"]))
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    words.append(params["entry"]["text"])
        return words

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG, for a person to look at."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it prints, A4."""
        printed = self.send(
            "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False, preferCSSPageSize=True
        )
        path.write_bytes(base64.b64decode(printed["data"]))


@contextmanager
def tab(program: str) -> Iterator[Tab]:
    """A fresh browser with an empty profile; it is gone afterwards."""
    to_browser, to_us = os.pipe(), os.pipe()

    def wire() -> None:
        read, write = os.dup(to_browser[0]), os.dup(to_us[1])
        os.dup2(read, _READ)
        os.dup2(write, _WRITE)

    with tempfile.TemporaryDirectory(prefix="kvplan-chromium-", ignore_cleanup_errors=True) as profile:
        command = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        command += [
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, preexec_fn=wire, close_fds=False, **quiet)
        os.close(to_browser[0])
        os.close(to_us[1])
        try:
            yield Tab(to_browser[1], to_us[0])
        finally:
            os.close(to_browser[1])
            os.close(to_us[0])
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
