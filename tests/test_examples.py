"""The examples run, on data as small as they may be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minicnn import data
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.planning import planned
from minicnn.backends.cupy.generation import generate
from minicnn.losses import SparseCategoricalCrossentropy
from support.datafiles import idx_bytes, write_idx

pytestmark = pytest.mark.no_cover
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST and Fashion-MNIST, or what has their format: drawn digits."""
    digits = data.load("synthetic_digits", n_train=1_000, n_test=50)
    arrays = {
        "x_train": digits.x_train[..., 0],
        "y_train": digits.y_train.astype(np.uint8),
        "x_test": digits.x_test[..., 0],
        "y_test": digits.y_test.astype(np.uint8),
    }
    base = tmp_path_factory.mktemp("data")
    for name in ("mnist", "fashion_mnist"):
        write_idx(base / name, {key: idx_bytes(array) for key, array in arrays.items()})
    return base


def run(name: str, *args: str, **environ: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "MINICNN_DATA"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *args],
        capture_output=True,
        text=True,
        env={**kept, **environ},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def accuracy_in(output: str) -> float:
    (percent,) = re.findall(r"test accuracy (\d+\.\d\d)%", output)
    return float(percent)


@pytest.mark.parametrize("network", ["platforms", "kernels", "mlp"])
def test_mnist(folder: Path, network: str) -> None:
    output = run("mnist.py", "--network", network, "--epochs", "2", "--data-dir", str(folder))
    assert 0 <= accuracy_in(output) <= 100
    assert f"{network} on mnist, <backend numpy:cpu>" in output
    assert output.count("Epoch ") == 2


def test_fashion_mnist_from_the_folder_of_the_environment_on_another_backend(folder: Path) -> None:
    pytest.importorskip("torch")
    output = run("fashion_mnist.py", "--backend", "torch", "--epochs", "1", MINICNN_DATA=str(folder))
    assert "platforms on fashion_mnist, <backend torch:cpu>" in output


def test_the_recipe_for_99_percent_learns_and_begins_anew_for_each_seed(folder: Path) -> None:
    output = run("mnist_99.py", "--data-dir", str(folder), "--runs", "2")
    assert "158,730 weights" in output
    found = re.findall(r"seed (\d): test accuracy (\d+\.\d\d)% after \d+\.\d{4} s", output)
    assert [seed for seed, _ in found] == ["0", "1"]
    assert all(float(percent) > 25 for _, percent in found)  # ten would be guessing
    mean = sum(float(percent) for _, percent in found) / 2
    assert f"mean of 2: {mean:.2f}" in output
    assert run("mnist_99.py", "--data-dir", str(folder)).count(f"seed 0: test accuracy {found[0][1]}%") == 1


def test_the_recipe_for_cifar10_on_made_images() -> None:
    arguments = ["--made", "400", "--epochs", "3", "--batch-size", "50", "--widths", "8", "8", "8"]
    output = run("cifar10_94.py", *arguments)
    assert "the accuracy says nothing" in output
    (percent,) = re.findall(r"seed 0: accuracy on made images (\d+\.\d\d)%", output)
    assert float(percent) > 25  # ten would be guessing


def test_a_step_of_the_recipe_for_cifar10_is_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import cifar10_94

    images = cifar10_94.padded(cifar10_94.made_images(50)[0])
    model = cifar10_94.network(images, None, 0, (8, 8, 8))
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True), precision="mixed_bfloat16")
    step = planned(model.program("train", batch_size=50), H200, generate)
    assert all(launch.source is not None for launch in step.launches)  # so that it is captured in a graph


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_a_step_of_the_recipe_for_mnist_is_kernels_alone(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import mnist_99

    model = mnist_99.network(None, 0)
    loss = SparseCategoricalCrossentropy(from_logits=True, label_smoothing=mnist_99.SMOOTHING)
    model.compile("adam", loss, ["accuracy"], precision=precision)
    step = planned(model.program("train", batch_size=mnist_99.BATCH_SIZE), H200, generate)
    assert all(launch.source is not None for launch in step.launches)
    assert sum(launch.seconds for launch in step.launches) < 50e-6  # by the model; an epoch has 468


def test_transfer_learning(folder: Path) -> None:
    arguments = ["--data-dir", str(folder), "--clothes", "200", "--digits", "40", "--epochs", "3"]
    output = run("transfer_learning.py", *arguments)
    assert output.count("Epoch ") == 3 + 3 + 2 + 1
    assert "model (Sequential, frozen)" in output
    assert re.search(r"40 digits on <backend .*>: test accuracy \d+\.\d\d% from first weights,", output)


def test_a_custom_layer() -> None:
    output = run("custom_layer.py")
    assert "residual_1 (Residual)" in output
    gains = [float(gain) for gain in re.findall(r"gain (\d\.\d{3})", output)]
    assert len(gains) == 2
    assert min(gains) > 0
    assert float(re.findall(r"val_accuracy: (\d\.\d+)", output)[-1]) > 0.5


def test_a_custom_primitive() -> None:
    output = run("custom_primitive.py")
    (error,) = re.findall(r"differ by (\S+)", output)
    assert float(error) < 1e-8
    assert "= unit_length(" in output
    assert float(re.findall(r"val_accuracy: (\d\.\d+)", output)[-1]) > 0.5


def test_all_examples_are_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "contrastive.py",
        "distillation.py",
        "gan.py",
        "on_digits.py",
        "vae.py",
        "cifar10_94.py",
        "custom_layer.py",
        "custom_primitive.py",
        "fashion_mnist.py",
        "mnist.py",
        "mnist_99.py",
        "transfer_learning.py",
    }


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("gan.py", ("--kind", "dcgan"), r"64 digits of dcgan: 0\.\d\d of the ink"),
        ("gan.py", ("--kind", "wgan-gp"), r"64 digits of wgan-gp: 0\.\d\d of the ink"),
        ("vae.py", (), r"loss \d+\.\d, reconstruction \d+\.\d, divergence \d+\.\d"),
        ("contrastive.py", (), r"a linear classifier of its features: test accuracy \d+\.\d\d%"),
        ("distillation.py", (), r"resnet18: 11,1\d\d,\d{3} weights(.|\n)*the student, taught: 5,258 weights, test acc"),
    ],
)
def test_steps_of_their_own(name: str, arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    small = ("--data", "synthetic_digits", "--samples", "32", "--batch-size", "16", "--epochs", "1")
    output = run(name, *arguments, *small, "--backend", "numpy", "--picture", str(tmp_path / "digits.png"))
    assert re.search(said, output)
    assert (tmp_path / "digits.png").stat().st_size > 100
