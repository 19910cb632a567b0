from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minicnn.data import DataError, cifar10, files, idx, mnist
from support.datafiles import IDX_NAMES, cifar_binary, idx_files, photos, write_idx, write_tar

pooch = pytest.importorskip("pooch")
cifar_module = sys.modules[cifar10.__module__]  # the package shows the function by this name


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_request(self, *args: object) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[http.server.ThreadingHTTPServer]:
    """Serves the folder `site`; `requests` lists the paths that were asked for."""
    (tmp_path / "site").mkdir()

    def handler(*args: object) -> Quiet:
        return Quiet(*args, directory=str(tmp_path / "site"))  # type: ignore[arg-type]

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.requests = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    return tmp_path / "cache" / "minicnn"


@pytest.fixture
def source(server, cache, tmp_path, monkeypatch) -> dict[str, bytes]:
    """MNIST, replaced by small files on two mirrors, `first` and `second`."""
    content = idx_files()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    small = dataclasses.replace(
        idx.MNIST,
        mirrors=(f"{url}/first/", f"{url}/second/"),
        sha256={key: hashlib.sha256(value).hexdigest() for key, value in content.items()},
    )
    monkeypatch.setattr(idx, "MNIST", small)
    return content


def test_files_are_downloaded_once(source, server, cache, tmp_path):
    write_idx(tmp_path / "site" / "first", source, ".gz")
    first = mnist()
    assert len(server.requests) == 4
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(f"{n}.gz" for n in IDX_NAMES.values())
    second = mnist()
    assert len(server.requests) == 4
    assert np.array_equal(first.x_train, second.x_train)


def test_the_content_is_verified_and_not_the_compression(source, server, tmp_path):
    write_idx(tmp_path / "site" / "first", source, ".gz")
    path = tmp_path / "site" / "first" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(source["x_train"], 1, mtime=12345))
    assert len(mnist().x_train) == 7


@pytest.mark.parametrize("damage", ["missing", "wrong", "truncated"])
def test_the_second_mirror_is_tried(source, server, tmp_path, damage):
    write_idx(tmp_path / "site" / "first", source, ".gz")
    write_idx(tmp_path / "site" / "second", source, ".gz")
    path = tmp_path / "site" / "first" / "t10k-images-idx3-ubyte.gz"
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(gzip.compress(b"something else") if damage == "wrong" else good[:-5])
    assert len(mnist().x_test) == 5
    assert "/second/t10k-images-idx3-ubyte.gz" in server.requests
    assert len(server.requests) == 5


def test_a_bad_file_in_the_cache_is_fetched_again(source, server, cache, tmp_path):
    write_idx(tmp_path / "site" / "first", source, ".gz")
    mnist()
    (cache / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    assert len(mnist().y_train) == 7
    assert len(server.requests) == 5


@pytest.mark.parametrize("told", [False, True])
def test_a_download_without_end_is_ended(server, cache, told):
    """Whether the server tells the length or not, no more is fetched than the file that was asked for can have."""
    sent = 0

    def endless(self: Quiet) -> None:
        nonlocal sent
        self.send_response(200)
        if told:
            self.send_header("Content-Length", str(2**40))
        self.end_headers()
        with contextlib.suppress(OSError):  # the other side has hung up
            while sent < 10**9:
                sent += self.wfile.write(bytes(2**16))

    server.RequestHandlerClass = type("Endless", (Quiet,), {"__init__": Quiet.__init__, "do_GET": endless})
    url = f"http://127.0.0.1:{server.server_address[1]}/file.gz"
    with pytest.raises(DataError, match=r"the file has at most 1,062,500 bytes. Received: more"):
        files.download("some", "file.gz", [url], "0" * 64, 10**6, uncompressed=False, remedy="Fetch it.")
    assert sent < 50e6  # what the sockets had room for
    assert list((cache / "some").iterdir()) == []


def test_no_mirror_works(source, server, cache, tmp_path):
    bad = {key: value + b"!" for key, value in source.items()}
    write_idx(tmp_path / "site" / "first", bad, ".gz")
    with pytest.raises(DataError, match=r"(?s)could not be downloaded.*SHA-256 is.*second.*404.*Looked in.*data_dir"):
        mnist()
    assert list((cache / "mnist").iterdir()) == []


def test_no_network(source, cache, monkeypatch, tmp_path):
    monkeypatch.setattr(idx, "MNIST", dataclasses.replace(idx.MNIST, mirrors=("http://127.0.0.1:9/",)))
    with pytest.raises(DataError, match=r"(?s)could not be downloaded.*Looked in: no folder.*MINICNN_DATA"):
        mnist()


def test_download_can_be_refused(source, server):
    with pytest.raises(DataError, match="mnist needs the files"):
        mnist(download=False)
    assert server.requests == []


def test_without_pooch(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r'pip install "minicnn-arrays\[cli\]"'):
        mnist()


def test_progress_on_a_terminal(source, server, tmp_path, monkeypatch, capsys):
    write_idx(tmp_path / "site" / "first", source, ".gz")
    monkeypatch.setenv("FORCE_COLOR", "1")
    mnist()
    shown = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz" in shown
    assert "bytes" in shown


def test_silence_elsewhere(source, server, tmp_path, capsys, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    write_idx(tmp_path / "site" / "first", source, ".gz")
    mnist()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_without_rich(source, server, tmp_path, monkeypatch):
    write_idx(tmp_path / "site" / "first", source, ".gz")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert len(mnist().x_train) == 7


def test_cifar10_is_downloaded_and_verified(server, cache, tmp_path, monkeypatch):
    members = {
        "cifar-10-batches-bin/data_batch_1.bin": cifar_binary(*photos(3)),
        "cifar-10-batches-bin/test_batch.bin": cifar_binary(*photos(2, seed=1)),
    }
    archive = write_tar(tmp_path / "site" / "cifar-10-binary.tar.gz", members)
    monkeypatch.setattr(cifar_module, "URLS", (f"http://127.0.0.1:{server.server_address[1]}/{archive.name}",))
    with pytest.raises(DataError, match="SHA-256 is c4a38c50"):
        cifar10()
    monkeypatch.setattr(cifar_module, "SHA256", files.sha256(archive, 10**6, uncompressed=False))
    assert len(cifar10().x_train) == 3
    assert len(server.requests) == 2
