"""`minicnn demo`: draw an image in the browser, and see what a saved model makes of it."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from minicnn.cli import saved
from minicnn.files import write_file


@click.command()
@saved.model_options
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port; by default one that is free."
)
@click.option(
    "--html", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the page as one file instead, which holds the model and needs no server.",
)  # fmt: skip
@click.option("--open/--no-open", "opened", default=True, help="Whether to open the page in the browser.")
def demo(model: Path, backend: str, port: int, path: Path | None, opened: bool) -> None:
    """Draw an image in the browser, and see what MODEL makes of it: prediction, feature maps, Grad-CAM.

    MODEL is the folder of a training, or a file that Model.save wrote. The page is on this machine only, until Ctrl-C.
    """
    from minicnn.demo import Demo, serve  # and with it a server, which other commands do not need

    network = saved.load(model, backend)
    saved.image_shape(network)
    asked = Demo(network, saved.names(network), saved.scale(network))
    if path is not None:
        try:
            write_file(path, asked.alone().encode())
        except ValueError as refused:
            raise click.ClickException(str(refused)) from refused
        click.echo(f"{path}: {model}, to draw on")
        return
    server = serve(asked, port)
    address = f"http://{server.server_address[0]!s}:{server.server_address[1]}/"
    click.echo(f"{model}: draw at {address} (Ctrl-C ends it)")
    if opened:
        webbrowser.open(address)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt as stopped:
            if stopped.args:  # by another process, not by who has seen enough
                raise
