"""A headless Chromium, driven over a pair of pipes: no packages are needed for it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def find() -> str | None:
    """The program: LMS_CHROMIUM, else the first of its usual names."""
    given = os.environ.get("LMS_CHROMIUM")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of one browser. What the page says on its console, and what fails in it, is in
    `complaints`; what it asks of the network in `requests`."""

    def __init__(self, program: str, profile: Path, patience: float = 60) -> None:
        self.patience = patience
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.events: list[str] = []
        self._next = 0
        self._session: str | None = None
        self._rest = b""
        # The browser reads commands from its descriptor 3, and answers on 4.
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        arguments = [
            *(program, "--headless", "--disable-gpu", "--no-first-run", "--no-sandbox"),
            *("--disable-background-networking", "--disable-dev-shm-usage"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ]
        shell = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "browser", str(commands), str(answers), *arguments],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each for each in targets if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._commands)
        os.close(self._answers)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Carry out a command of the DevTools protocol."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.patience
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        event, of = message.get("method", ""), message.get("params", {})
        self.events.append(event)
        if event == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"console.{of['type']}: {of['args']}")
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {of['exceptionDetails']}")
        elif event == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"log: {of['entry']['text']} {of['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.requests.append(of["request"]["url"])

    def show(
        self, width: int, height: int, scheme: str, scale: float = 1, script: bool = True
    ) -> None:
        """What is opened next is this wide, in pixels, and the person prefers `scheme`."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)

    def open(self, url: str) -> None:
        """Open a page and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self.events:
            self._read()

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of what it promises."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def picture(self, path: Path, clip: tuple[float, float, float, float] | None = None) -> None:
        """A PNG of what is seen, or of the rectangle (x, y, width, height) of the page."""
        more: dict[str, Any] = {}
        if clip:
            x, y, width, height = clip
            more["clip"] = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
            more["captureBeyondViewport"] = True
        data = self.call("Page.captureScreenshot", format="png", **more)["data"]
        path.write_bytes(base64.b64decode(data))
