"""A headless Chromium that tests drive: pages as a reader sees them, at any width, in light and in dark.

Chromium takes commands of its DevTools protocol on descriptor 3 and answers on descriptor 4, each one ended by a zero
byte; no port is opened and no package is needed.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
PATIENCE, ATTEMPTS = 30, 3  # seconds for an answer; starts

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

# Elements that stick out of the screen to the right and lie in no box that scrolls.
OVERFLOW = """(() => { const wide = document.documentElement.clientWidth, out = [];
for (const e of document.body.querySelectorAll('*')) {
  const box = e.getBoundingClientRect();
  if (!box.width || box.right <= wide + 1) continue;
  let held = false;
  for (let p = e.parentElement; p; p = p.parentElement)
    held ||= ['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(p).overflowX);
  if (!held && getComputedStyle(e).position !== 'fixed') out.push(e.tagName + '.' + (e.getAttribute('class') || ''));
} return out.slice(0, 5) })()"""

# Texts whose contrast with what is behind them is less than 4.5, by the formula of WCAG 2; large ones less than 3.
CONTRAST = """(() => { const parse = c => { const n = c.match(/[\\d.]+/g).map(Number);
  return c.startsWith('color(srgb') ? [n[0]*255, n[1]*255, n[2]*255, n[3] ?? 1] : [n[0], n[1], n[2], n[3] ?? 1] };
const light = c => [0, 1, 2].map(i => c[i] / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const over = (top, low) => [0, 1, 2].map(i => top[i] * top[3] + low[i] * (1 - top[3])).concat(1);
const grounds = new Map([[null, [255, 255, 255, 1]]]);
const behind = e => { if (!grounds.has(e))
  grounds.set(e, over(parse(getComputedStyle(e).backgroundColor), behind(e.parentElement)));
  return grounds.get(e) };
const bad = [], seen = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (seen.nextNode()) { const text = seen.currentNode, e = text.parentElement, style = getComputedStyle(e);
  if (!text.data.trim() || !e.getClientRects().length || style.visibility !== 'visible' || e.closest('svg, script'))
    continue;
  const ground = behind(e), ink = over(parse(style.color), ground), size = parseFloat(style.fontSize);
  const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  if (ratio < (large ? 3 : 4.5)) bad.push(text.data.trim().slice(0, 40) + ' ' + ratio.toFixed(2)) }
return [...new Set(bad)].slice(0, 8) })()"""

NO_ALTERNATIVE = "[...document.images].filter(i => !i.getAttribute('alt')).map(i => i.getAttribute('src').slice(0, 80))"


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._numbers, self._rest, self.events = itertools.count(1), b"", list[dict[str, Any]]()
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have Chromium do something, and wait for its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        os.write(
            self._write, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, patience: float = PATIENCE) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], patience)
            assert ready, "Chromium does not answer"
            self._rest += (part := os.read(self._read, 1 << 20))
            assert part, "Chromium has ended"
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, url: str | Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page, and wait until it has."""
        self.show(width=width, height=height, dark=dark)
        self.events.clear()
        self.call("Page.navigate", url=url.as_uri() if isinstance(url, Path) else url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def show(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Give the screen a size and a light; a page that is open is laid out for them when it is next looked at."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, patience: float = PATIENCE) -> Any:
        """Wait until an expression of JavaScript is true; its value."""
        end = time.monotonic() + patience
        while not (value := self.run(condition)):
            assert time.monotonic() < end, f"{condition} is still false"
            time.sleep(0.02)
        return value

    def key(self, name: str, text: str = "") -> None:
        """Press a key and let go."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Home": 36, "Tab": 9,
                 "Enter": 13}  # fmt: skip
        key = {"key": name, "code": name, "windowsVirtualKeyCode": codes.get(name, ord(name[0].upper()))}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move the mouse, press its button or let it go: "mouseMoved", "mousePressed" or "mouseReleased"."""
        buttons = 0 if kind == "mouseReleased" else 1
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

    def hover(self, selector: str) -> None:
        """Move the mouse over an element, without a button."""
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click at the middle of an element."""
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def middle(self, selector: str) -> tuple[float, float]:
        """The middle of an element, which is brought into view."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
            "return [b.left + b.width / 2, b.top + b.height / 2] })()"
        )
        return x, y

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, to a PNG file."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, and what the page's policy has refused, since the page was opened."""
        self.run("0")  # what happened before has been told by now
        said = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                said.append(str(event["params"]["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                said.append(event["params"]["entry"]["text"])
        return said

    @property
    def asked(self) -> list[str]:
        """What the page has asked for since it was opened, but for data within it."""
        self.run("0")
        urls = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]


@contextmanager
def browser() -> Iterator[Browser]:
    """Context manager: a headless Chromium, which on a busy machine does not always come up at once."""
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            process, write, read = _start(profile)
            try:
                try:
                    found = Browser(write, read)
                except AssertionError:
                    if attempt + 1 == ATTEMPTS:
                        raise
                    continue
                yield found
                return
            finally:
                process.kill()
                process.wait()
                os.close(write)
                os.close(read)


def _start(profile: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """Chromium, and descriptors to write commands to and to read answers from."""
    (to_it, from_us), (from_it, to_us) = os.pipe(), os.pipe()
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
        "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    # Chromium reads and writes descriptors of these numbers.
    renumbered = f'exec "$@" 3</dev/fd/{to_it} 4>/dev/fd/{to_us}'
    process = subprocess.Popen(
        ["sh", "-c", renumbered, "sh", *command],
        pass_fds=(to_it, to_us), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_it)
    os.close(to_us)
    return process, from_us, from_it
