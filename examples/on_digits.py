"""What the examples with steps of their own share: options, digits, and pictures of them."""

import argparse
from typing import Any

import numpy as np

from minicnn import data


def options(description: str, epochs: int, **choices: list[str]) -> argparse.Namespace:
    """The command line: the data, how long, where, and a file for the picture; more choices by name."""
    parser = argparse.ArgumentParser(description=description)
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    parser.add_argument("--data", default="mnist", help='"mnist", "fashion_mnist" or "synthetic_digits"')
    parser.add_argument("--data-dir", help="folder of the four IDX files; else that of MINICNN_DATA, or a download")
    parser.add_argument("--samples", type=int, default=60_000, help="training images")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--backend", default="numba", help='"numpy", "torch", "torch:cuda", "jax", "cupy" ...')
    parser.add_argument("--picture", help="file to draw, such as digits.png")
    return parser.parse_args()


def digits(args: argparse.Namespace) -> Any:
    """The data that the command line names; images are bytes (N, 28, 28, 1)."""
    if args.data == "synthetic_digits":
        return data.load(args.data, n_train=args.samples, n_test=max(50, args.samples // 10))
    return data.load(args.data, args.data_dir)


def grid(images: Any, columns: int) -> np.ndarray[Any, Any]:
    """Images (N, H, W, 1) with numbers from 0 to 1, side by side in rows."""
    images = np.asarray(images)[..., 0]
    rows = [np.concatenate(list(images[i : i + columns]), axis=1) for i in range(0, len(images), columns)]
    return np.concatenate([row for row in rows if row.shape == rows[0].shape])


def draw(path: str | None, image: Any, **options: Any) -> None:
    """Write an image of numbers from 0 to 1, if there is a path."""
    if path:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        pyplot.imsave(path, image, cmap="gray", vmin=0, vmax=1, **options)
        print(f"drawn: {path}")
