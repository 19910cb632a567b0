"""The demo's server: the page, and what the model makes of an image that the page sends. It answers this machine only.

A page of another site could send requests here from the same browser, so the address that a request names has to be
this server's own, and images are taken only as a type that a page of another site has to ask for first.
"""

from __future__ import annotations

import base64
import json
import math
import threading
from collections.abc import Mapping
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn import html
from minicnn.demo import javascript
from minicnn.pictures import ABOVE, BELOW, GAP, Picture, picture
from minicnn.program.passes import remove_dead_nodes
from minicnn.visual.attribution import Attributor
from minicnn.visual.gallery import enlarged, heated
from minicnn.visual.report import probabilities

if TYPE_CHECKING:
    from minicnn.models import Model

Array = np.ndarray[Any, Any]

HOST = "127.0.0.1"
MOST_BYTES = 1 << 22  # of a request: an image of 1024 x 1024 in RGB
MOST_MAPS = 16  # of a layer that are shown
SEEN = 160  # pixels of an overlay's side, about


class Demo:
    """A model that is asked about one image at a time.

    Args:
        model: The model: images (N, H, W, C) of 1 or 3 channels to scores (N, classes).
        names: Names of the classes.
        scale: What pixels from 0 to 255 are multiplied by; 1 for a model that scales them itself.

    Raises:
        ValueError: If the model takes or gives something else.
    """

    def __init__(self, model: Model, names: list[str], scale: float = 1.0) -> None:
        self._attributor = Attributor(model)
        shape: Any = model.input_shape
        self._first = self._attributor.channels_first
        self.shape: tuple[int, int, int] = (*shape[2:], shape[1]) if self._first else shape[1:]
        if self.shape[2] not in (1, 3):
            raise ValueError(f"Images are drawn in grey or RGB. Received: a model of {self.shape[2]} channels.")
        self.names, self.scale, self.title = names, scale, model.name
        self._lock = threading.Lock()  # a model answers one request at a time

    @property
    def layers(self) -> list[str]:
        """Names of the convolutions."""
        return self._attributor.layers

    def answer(self, pixels: Array, target: int | None = None, layer: str | None = None) -> dict[str, Any]:
        """Predictions for an image.

        Args:
            pixels: uint8 (H, W, C).
            target: Class that Grad-CAM is asked about; the predicted one if None.
            layer: Convolution whose feature maps and Grad-CAM are shown; the last one if None.

        Returns:
            "probabilities" of the classes, "target", and, of a model with convolutions, "layer", "overlay" and "maps",
            these as PNG in base64, with "caption".
        """
        image = pixels[None]
        scaled = image if self.scale == 1 else image.astype(np.float32) * np.float32(self.scale)
        scaled = scaled.transpose(0, 3, 1, 2) if self._first else scaled
        with self._lock:
            run = self._attributor(scaled, np.array([-1 if target is None else target]))
        answer: dict[str, Any] = {
            "probabilities": probabilities(run["outputs"])[0].tolist(), "target": int(run["chosen"][0]),
        }  # fmt: skip
        if not self.layers:
            return answer
        layer = layer or self.layers[-1]
        maps = self._attributor.grad_cam(run, layer)
        large = enlarged(maps, self.shape[:2])
        whole = np.repeat(image, 3, -1) if self.shape[2] == 1 else image
        overlay = heated(whole, large / max(large.max(), np.finfo(np.float64).tiny))[0]
        factor = max(1, SEEN // max(overlay.shape[:2]))
        features = run[f"features {layer}"][0].astype(np.float32)
        features = features if self._first else features.transpose(2, 0, 1)
        shown = picture(features[:MOST_MAPS], layer)
        return answer | {
            "layer": layer, "overlay": _png(overlay.repeat(factor, 0).repeat(factor, 1)), "maps": _png(shown.pixels),
            "caption": f"{shown.caption} ({len(features)} in all)" if len(features) > MOST_MAPS else shown.caption,
        }  # fmt: skip

    @cached_property
    def page(self) -> str:
        """The page, which asks the server."""
        return self._page(_read("page.js"), {}, asks_itself=True)

    def alone(self) -> str:
        """The page with the model in it: it needs no server, and asks no network.

        Raises:
            ValueError: If a primitive of the model has no form in JavaScript.
        """
        program, arrays, x = self._attributor.program.copy(), self._attributor.arrays, self._attributor.x
        remove_dead_nodes(program)
        size = {name: program.outputs[f"features {name}"].shape[1:] for name in self.layers}
        maps = {name: (*shape[1:], shape[0]) if self._first else shape for name, shape in size.items()}
        read = {v.name for v in program.inputs}
        weights = {
            name: (str(array.dtype), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode())
            for name, array in arrays.items() if name in read
        }  # fmt: skip
        facts = {
            "weights": weights, "input": x.name, "dtype": x.dtype, "scale": self.scale, "first": self._first,
            "maps": maps, "rectified": self._attributor.rectified, "most": MOST_MAPS, "above": ABOVE, "below": BELOW,
            "gap": [GAP] * 3,
        }  # fmt: skip
        script = _read("page.js")
        head = script.index("\n", script.index("const facts")) + 1  # what reads the facts comes first
        return self._page(script[:head] + javascript.script(program) + _read("alone.js") + script[head:], facts)

    def _page(self, script: str, more: Mapping[str, Any], *, asks_itself: bool = False) -> str:
        H, W, C = self.shape
        facts = {"height": H, "width": W, "channels": C, "names": self.names, "layers": self.layers, **more}
        choices = "".join(f"<option>{html.escape(name)}</option>" for name in self.layers)
        convolution = _CONVOLUTION.format(choices=choices) if self.layers else ""
        body = _BODY.format(title=html.escape(self.title), convolution=convolution)
        return html.document(
            f"minicnn: {self.title}", body, style=_read("page.css"), script=script, data=facts, asks_itself=asks_itself
        )


def _read(name: str) -> str:
    """A file of this folder."""
    return (files("minicnn.demo") / name).read_text("utf-8")


_BODY = """<main><h1>{title}</h1><p class=soft>Draw with the mouse, a finger or a pen, or choose a picture. With the
keyboard: arrow keys move the pen, the space bar draws.</p><div class=panes>
<section><h2>Drawing</h2><canvas id=pad tabindex=0 role=img aria-label="Drawing pad: arrow keys move, space draws">
</canvas><div class=bar><button id=clear>Clear</button><label class=file>Picture <input id=file type=file
accept="image/*"></label><label>Pen <input id=pen type=range min=1 max=16 value=8></label></div>
<canvas id=seen aria-label="What the model sees" role=img></canvas><p class=soft>What the model sees</p></section>
<section><h2>Prediction</h2><p id=best class=best aria-live=polite>–</p><div id=classes></div>
<p class=soft>Choose a class to ask what speaks for it.</p></section>{convolution}</div>
<p id=wrong role=alert></p></main>"""

_CONVOLUTION = """<section><h2>Why</h2><label>Layer <select id=layer>{choices}</select></label>
<img id=overlay alt="Grad-CAM: where the features speak for the class"><p class=soft>Grad-CAM: what speaks for
<b id=target>the class</b></p><img id=maps alt="Feature maps of the layer"><p class=soft id=caption></p></section>"""


def serve(demo: Demo, port: int = 0) -> ThreadingHTTPServer:
    """A server for the demo on this machine's own address, which is not started yet.

    Args:
        demo: The demo.
        port: Its port; 0 for one that is free.
    """

    class Handler(_Handler):
        asked = demo

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the page and for predictions."""

    asked: Demo
    timeout = 30  # seconds; a connection that says nothing is closed
    server_version, sys_version = "minicnn", ""

    def do_GET(self) -> None:
        """The page."""
        if not self._is_own():
            return
        if self.path != "/":
            self._say(HTTPStatus.NOT_FOUND, "text/plain", b"There is one page, at /.")
            return
        self._say(HTTPStatus.OK, "text/html; charset=utf-8", self.asked.page.encode())

    def do_POST(self) -> None:
        """Predictions for an image."""
        if not self._is_own():
            return
        try:
            answer = self.asked.answer(**_request(self.path, self.headers, self.rfile, self.asked))
        except ValueError as error:
            self._say(HTTPStatus.BAD_REQUEST, "application/json", json.dumps({"wrong": str(error)}).encode())
            return
        self._say(HTTPStatus.OK, "application/json", json.dumps(answer).encode())

    def _is_own(self) -> bool:
        """True if the request names this server, and no other name that leads here."""
        host, _, port = self.headers.get("Host", "").rpartition(":")
        address: Any = self.server.server_address
        if host in (HOST, "localhost") and port == str(address[1]):
            return True
        self._say(HTTPStatus.FORBIDDEN, "text/plain", b"This page is for this machine only.")
        return False

    def _say(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind), ("Content-Length", str(len(content))), ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"), ("X-Frame-Options", "DENY"), ("Connection", "close"),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing: each stroke would be a line."""


def _request(path: str, headers: Any, stream: Any, demo: Demo) -> dict[str, Any]:
    """Arguments of `Demo.answer` in a request.

    Raises:
        ValueError: If it is none.
    """
    length = headers.get("Content-Length", "")
    if path != "/predict" or headers.get("Content-Type") != "application/json" or not length.isdecimal():
        raise ValueError("An image is sent to /predict as JSON.")
    if int(length) > MOST_BYTES:
        raise ValueError(f"An image has at most {MOST_BYTES:,} bytes. Received: {length}.")
    try:
        request = json.loads(stream.read(int(length)))
    except (ValueError, RecursionError) as error:
        raise ValueError("An image is sent to /predict as JSON.") from error
    if not isinstance(request, Mapping):
        raise ValueError("An image is sent as an object with pixels, target and layer.")
    pixels, target, layer = request.get("pixels"), request.get("target"), request.get("layer")
    try:
        data = base64.b64decode(pixels if isinstance(pixels, str) else "?", validate=True)
    except ValueError as error:
        raise ValueError("pixels are bytes in base64.") from error
    if len(data) != math.prod(demo.shape):
        raise ValueError(f"pixels are {math.prod(demo.shape):,} bytes. Received: {len(data):,}.")
    if target is not None and not (type(target) is int and 0 <= target < len(demo.names)):
        raise ValueError(f"target is a class from 0 to {len(demo.names) - 1}, or null.")
    if layer is not None and layer not in demo.layers:
        raise ValueError(f"layer is one of {', '.join(demo.layers)}, or null.")
    return {"pixels": np.frombuffer(data, np.uint8).reshape(demo.shape), "target": target, "layer": layer}


def _png(pixels: Array) -> str:
    return base64.b64encode(Picture(pixels, "")._repr_png_()).decode()
