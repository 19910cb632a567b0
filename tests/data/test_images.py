from __future__ import annotations

import shutil
import subprocess
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from minicnn.data import DataError, image_folder, images, tiny_imagenet
from support.datafiles import named_pipe
from support.fuzzing import png

Image = pytest.importorskip("PIL.Image")


def picture(seed: int, H: int = 6, W: int = 8, channels: int = 3) -> np.ndarray:
    shape = (H, W) if channels == 1 else (H, W, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def save(path: Path, pixels: np.ndarray, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def tree(root: Path, classes=("cat", "ant", "bee"), n: int = 4, **options) -> Path:
    for k, name in enumerate(classes):
        for i in range(n):
            save(root / name / f"{i}.png", picture(100 * k + i, **options))
    return root


def test_classes_and_images_are_in_the_order_of_their_names(tmp_path):
    dataset = image_folder(tree(tmp_path / "zoo"), test_fraction=0)
    assert dataset.name == "zoo"
    assert dataset.class_names == ("ant", "bee", "cat")
    assert dataset.y_train.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.x_test.shape == (0, 6, 8, 3)
    expected = [picture(100 * k + i) for k in (1, 2, 0) for i in range(4)]
    assert np.array_equal(dataset.x_train, expected)


def test_hold_out_is_stratified_and_seeded(tmp_path):
    root = tree(tmp_path, n=10)
    first, again, other = (image_folder(root, test_fraction=0.3, seed=seed) for seed in (1, 1, 2))
    assert np.bincount(first.y_train).tolist() == [7, 7, 7]
    assert np.bincount(first.y_test).tolist() == [3, 3, 3]
    assert np.array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)
    everything = np.concatenate([first.x_train, first.x_test]).reshape(30, -1)
    assert len(np.unique(everything, axis=0)) == 30


@pytest.mark.parametrize("name", ["test", "val"])
def test_train_and_test_folders(tmp_path, name):
    tree(tmp_path / "train")
    tree(tmp_path / name, classes=("bee", "cat"), n=2)
    dataset = image_folder(tmp_path)
    assert dataset.y_train.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.y_test.tolist() == [1, 1, 2, 2]
    assert np.array_equal(dataset.x_test[2], picture(100))


def test_test_folder_goes_before_val_and_train_alone_is_split(tmp_path):
    tree(tmp_path / "train")
    assert len(image_folder(tmp_path, test_fraction=0.25).x_test) == 3
    tree(tmp_path / "val", n=1)
    save(tmp_path / "test" / "unlabelled.png", picture(0))
    assert len(image_folder(tmp_path).x_test) == 3
    tree(tmp_path / "test", n=2)
    assert len(image_folder(tmp_path).x_test) == 6


def test_a_class_may_be_called_train(tmp_path):
    assert image_folder(tree(tmp_path, classes=("train", "bus", "test"))).class_names == (
        "bus",
        "test",
        "train",
    )


def test_unknown_test_class(tmp_path):
    tree(tmp_path / "train")
    tree(tmp_path / "test", classes=("dog",))
    with pytest.raises(DataError, match=r"in the training set. Received: dog"):
        image_folder(tmp_path)


@pytest.mark.parametrize(
    ("suffix", "options"),
    [("png", {}), ("JPG", {"quality": 95}), ("bmp", {}), ("ppm", {}), ("webp", {"lossless": True})],
)
def test_formats(tmp_path, suffix, options):
    smooth = np.add.outer(np.arange(0, 200, 10), np.arange(0, 50, 2))[..., None] + np.array([0, 2, 5])
    save(tmp_path / "a" / f"x.{suffix}", smooth.astype(np.uint8), **options)
    result = image_folder(tmp_path, test_fraction=0).x_train[0].astype(int)
    assert np.abs(result - smooth).max() <= (8 if suffix == "JPG" else 0)


def test_grey_and_colour(tmp_path):
    grey = picture(0, channels=1)
    save(tmp_path / "a" / "grey.png", grey)
    colour = image_folder(tmp_path, test_fraction=0)
    assert np.array_equal(colour.x_train[0], np.repeat(grey[..., None], 3, -1))
    assert np.array_equal(image_folder(tmp_path, channels=1, test_fraction=0).x_train[0, ..., 0], grey)
    save(tmp_path / "a" / "palette.gif", grey)
    save(tmp_path / "a" / "alpha.png", picture(1, channels=4))
    assert image_folder(tmp_path, test_fraction=0).x_train.shape == (3, 6, 8, 3)


def test_sizes(tmp_path):
    tree(tmp_path)
    save(tmp_path / "ant" / "large.png", picture(7, 12, 16))
    with pytest.raises(
        DataError, match=r"large.png: all images have the same size, 6x8 as 0.png. Received: 12x16.*size="
    ):
        image_folder(tmp_path)
    assert image_folder(tmp_path, size=(5, 7)).input_shape == (5, 7, 3)
    assert image_folder(tmp_path, 9).input_shape == (9, 9, 3)
    large = image_folder(tmp_path, (6, 8), test_fraction=0).x_train[4]
    mean = picture(7, 12, 16).reshape(6, 2, 8, 2, 3).mean((1, 3))
    assert np.abs(large[1:-1, 1:-1] - mean[1:-1, 1:-1]).mean() < 25  # averaged over the pixels, not sampled


def test_images_are_turned_as_exif_says(tmp_path):
    upright = np.zeros((16, 24, 3), np.uint8)
    upright[:8, :8, 0] = 255  # red, top left
    upright[8:, 16:, 2] = 255  # blue, bottom right
    turns = [lambda a: a, np.fliplr, lambda a: np.rot90(a, 2), np.flipud, lambda a: a.transpose(1, 0, 2)]
    turns += [np.rot90, lambda a: np.rot90(a, 2).transpose(1, 0, 2), lambda a: np.rot90(a, -1)]
    for orientation, turn in enumerate(turns, 1):  # what a camera stores that was held in this way
        exif = Image.Exif()
        exif[0x0112] = orientation
        for suffix in ("png", "jpg", "tif", "webp"):
            options = {"jpg": {"quality": 100, "subsampling": 0}, "webp": {"lossless": True}}.get(suffix, {})
            stored = np.ascontiguousarray(turn(upright))
            save(tmp_path / "a" / f"{orientation}.{suffix}", stored, exif=exif, **options)
    result = image_folder(tmp_path, test_fraction=0).x_train
    assert result.shape == (32, 16, 24, 3)
    assert np.abs(result.astype(int) - upright).max() <= 8
    assert image_folder(tmp_path, (8, 12), test_fraction=0).x_train.shape == (32, 8, 12, 3)


def test_images_in_folders_of_a_class(tmp_path):
    tree(tmp_path, n=2)
    for name in ("2020/b/1.png", "2020/a.png", "2019/z.png", ".hidden/1.png", "__MACOSX/1.png", "c/__MACOSX/._1.png"):
        save(tmp_path / "cat" / name, picture(len(name)))
    (tmp_path / "cat" / "back").symlink_to(tmp_path)
    save(tmp_path / "__MACOSX" / "cat" / "1.png", picture(9))
    dataset = image_folder(tmp_path, test_fraction=0)
    assert dataset.class_names == ("ant", "bee", "cat")
    assert dataset.y_train.tolist() == [0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert np.array_equal(dataset.x_train[6:], [picture(len(n)) for n in ("2019/z.png", "2020/a.png", "2020/b/1.png")])


def test_folders_without_images_are_no_classes_and_named(tmp_path):
    tree(tmp_path / "train")
    for name in ("aardvark/deep", "notes"):
        (tmp_path / "train" / name).mkdir(parents=True)
    (tmp_path / "train" / "notes" / "1.txt").touch()
    tree(tmp_path / "test")
    (tmp_path / "test" / "empty").mkdir()
    with pytest.warns(UserWarning, match=r"those without are passed over\. Received in .*train: aardvark, notes\."):
        dataset = image_folder(tmp_path)
    assert dataset.class_names == ("ant", "bee", "cat")
    assert dataset.y_test.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_a_folder_around_the_class_folders_is_named(tmp_path):
    tree(tmp_path / "flower_photos")
    with pytest.raises(
        DataError, match=r"Received: folders in 'flower_photos'\. Name .*flower_photos, if these are the"
    ):
        image_folder(tmp_path)
    assert image_folder(tmp_path / "flower_photos").num_classes == 3


def test_every_suffix_of_the_formats_is_known():
    Image.init()
    assert {s for s, name in Image.registered_extensions().items() if name in images.FORMATS} <= images.SUFFIXES


@pytest.mark.parametrize("suffix", ["jfif", "jpe", "JFIF", "dib", "pnm", "apng"])
def test_rarer_suffixes(tmp_path, suffix):
    kind = {"dib": "bmp", "pnm": "ppm", "apng": "png"}.get(suffix, "jpeg")
    save(tmp_path / "a" / f"x.{suffix}", picture(0), format=kind)
    assert image_folder(tmp_path, test_fraction=0).x_train.shape == (1, 6, 8, 3)


@pytest.mark.parametrize("size", ["0 6", "8 0"])
def test_images_without_pixels_are_named(tmp_path, size):
    tree(tmp_path)
    (tmp_path / "bee" / "none.ppm").write_bytes(f"P6 {size} 255\n".encode())
    with pytest.raises(DataError, match=r"none.ppm: an image is BMP, .* has 1 to 33,554,432 pixels"):
        image_folder(tmp_path, size=8)


def test_other_files_are_passed_over(tmp_path):
    tree(tmp_path)
    for name in ("notes.txt", ".hidden.png", "Thumbs.db"):
        (tmp_path / "ant" / name).write_bytes(b"x")
    tree(tmp_path / ".git")
    (tmp_path / "readme.png").write_bytes(b"x")
    assert len(image_folder(tmp_path, test_fraction=0).x_train) == 12


def test_trees_without_images(tmp_path):
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "a"):
        with pytest.raises(
            DataError, match=r"a folder for each class, with images whose suffix is .*png.*Received: none"
        ):
            image_folder(path)


@pytest.mark.parametrize(
    "options",
    [
        {"test_fraction": 1},
        {"test_fraction": -0.1},
        {"channels": 4},
        {"size": 0},
        {"size": (3, -1)},
        {"size": 10**5},
        {"seed": -1},
    ],
)
def test_arguments_are_checked(tmp_path, options):
    with pytest.raises(ValueError, match="Received: "):
        image_folder(tree(tmp_path), **options)


def test_the_folder_must_be_given():
    with pytest.raises(ValueError, match="Name it by data_dir"):
        image_folder(None)


@pytest.mark.parametrize("side", [9_000, 10_000, 100_000])  # Pillow warns of the second, refuses the third
def test_decompression_bombs(tmp_path, side):
    tree(tmp_path)
    (tmp_path / "bee" / "bomb.png").write_bytes(png(side, side, zlib.compress(bytes(100))))
    with pytest.raises(
        DataError, match=r"bomb.png: an image is BMP, .* Received: (more than 33,554,432 pixels|Image size)"
    ):
        image_folder(tmp_path, size=8)


def test_too_many_bytes_in_all(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_BYTES", 12 * 6 * 8 * 3 - 1)
    with pytest.raises(DataError, match=r"12 images of shape \(6, 8, 3\)"):
        image_folder(tree(tmp_path))


@pytest.mark.parametrize("content", [b"", b"not an image", png(8, 6, zlib.compress(bytes(100)))])
def test_unreadable_images(tmp_path, content):
    tree(tmp_path)
    (tmp_path / "bee" / "2.png").write_bytes(content)
    with pytest.raises(DataError, match=r"bee.2.png: an image is BMP, GIF, JPEG"):
        image_folder(tmp_path)


def test_a_named_pipe_is_refused(tmp_path):
    tree(tmp_path)
    named_pipe(tmp_path / "bee" / "9.png")
    with pytest.raises(DataError, match=r"9.png: a data file is a regular file that can be opened. Received: it is"):
        image_folder(tmp_path)


@pytest.mark.parametrize("name", ["page.png", "page.jpg"])
def test_only_the_formats_that_are_named_are_opened(tmp_path, monkeypatch, name):
    tree(tmp_path)
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *args, **options: started.append(args))
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "bee" / name).write_bytes(page)
    with pytest.raises(DataError, match=rf"{name}: an image is BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP and"):
        image_folder(tmp_path)
    assert started == []


def test_a_png_that_is_called_jpg_is_opened(tmp_path):
    tree(tmp_path)
    (tmp_path / "bee" / "0.png").rename(tmp_path / "bee" / "0.jpg")
    assert len(image_folder(tmp_path, test_fraction=0).x_train) == 12


LARGE = """
import resource, sys
from minicnn.data import DataError, image_folder
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 10**9, used + 10**9))
try:
    image_folder(sys.argv[1])
except DataError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as on Linux")
def test_images_that_do_not_fit_into_memory_are_told_before(tmp_path):
    (tmp_path / "a").mkdir()
    image = Image.new("1", (5792, 5792))
    image.save(tmp_path / "a" / "0.png")
    for i in range(1, 20):
        shutil.copy(tmp_path / "a" / "0.png", tmp_path / "a" / f"{i}.png")
    result = subprocess.run([sys.executable, "-c", LARGE, tmp_path], capture_output=True, text=True, check=True)
    assert "A Dataset holds at most " in result.stdout
    assert "Received: 20 images of shape (5792, 5792, 3)" in result.stdout
    assert "Give a smaller size." in result.stdout


def test_large_images_are_decoded_by_and_by(tmp_path, monkeypatch):
    tree(tmp_path, n=8)
    most = 0

    class Counting(images._Pixels):
        @contextmanager
        def take(self, count):
            nonlocal most
            with super().take(count):
                most = max(most, images.MAX_AT_ONCE - self._free)
                yield

    monkeypatch.setattr(images, "MAX_AT_ONCE", 2 * 6 * 8)
    monkeypatch.setattr(images, "_pixels", Counting())
    assert len(image_folder(tmp_path, test_fraction=0).x_train) == 24
    assert 6 * 8 <= most <= 2 * 6 * 8


def test_sixteen_bits_are_refused(tmp_path):
    save(tmp_path / "a" / "deep.png", np.full((4, 4), 40_000, np.uint16))
    with pytest.raises(DataError, match=r"deep.png.*8 bits a channel"):
        image_folder(tmp_path)


def test_without_pillow(tmp_path, monkeypatch):
    tree(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "minicnn-arrays\[cli\]"'):
        image_folder(tmp_path)


def tiny(root: Path) -> Path:
    for k, wnid in enumerate(("n02", "n01")):
        for i in range(3):
            save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", picture(10 * k + i, 8, 8), quality=95)
    lines = []
    for i, wnid in enumerate(("n01", "n02", "n01", "n02")):
        save(root / "val" / "images" / f"val_{i}.JPEG", picture(50 + i, 8, 8, channels=1))  # some are grey
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t7\t7\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn03\tnothing\nn02\ttoad\n")
    return root


@pytest.mark.parametrize("subfolder", ["", "tiny-imagenet-200", "tiny_imagenet"])
def test_tiny_imagenet(tmp_path, subfolder):
    tiny(tmp_path / subfolder)
    dataset = tiny_imagenet(tmp_path)
    assert dataset.name == "tiny_imagenet"
    assert dataset.class_names == ("goldfish, Carassius auratus", "toad")
    assert dataset.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.y_test.tolist() == [0, 1, 0, 1]
    with Image.open(tmp_path / subfolder / "train" / "n01" / "images" / "n01_2.JPEG") as image:
        assert np.array_equal(dataset.x_train[2], np.asarray(image))
    assert tiny_imagenet(tmp_path, size=4).input_shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("val/val_annotations.txt", b"val_0.JPEG\tn01\n", "6 columns, split by tabs. Received: 2 in row 1"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn09\t0\t0\t7\t7\n", "a class of the training set.* 'n09'"),
        ("val/val_annotations.txt", b"../images/val_0.JPEG\tn01\t0\t0\t7\t7\n", "names an image"),
        ("val/val_annotations.txt", b"val_9.JPEG\tn01\t0\t0\t7\t7\n", "val_9.JPEG: a data file is a regular file"),
        ("words.txt", b"n01 goldfish\n", "2 columns"),
        ("words.txt", b"n01\t\xff\n", "a text in UTF-8"),
    ],
)
def test_bad_tiny_imagenet(tmp_path, name, content, match):
    (tiny(tmp_path) / name).write_bytes(content)
    with pytest.raises(DataError, match=match):
        tiny_imagenet(tmp_path)


def test_tiny_imagenet_without_training_images(tmp_path):
    tiny(tmp_path)
    (tmp_path / "train").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="tiny_imagenet needs the folder"):
        tiny_imagenet(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="a folder for each class"):
        tiny_imagenet(tmp_path)
