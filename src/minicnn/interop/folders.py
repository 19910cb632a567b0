"""Models in folders as the Hugging Face Hub keeps them: config.json, model.safetensors and a card, README.md.

config.json has what a saved model has but its arrays, model.safetensors the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import minicnn
from minicnn.backends import get_backend
from minicnn.backends.base import Backend
from minicnn.description import describe
from minicnn.extras import install
from minicnn.files import Path, SavedModelError, read_json, write_file
from minicnn.models import Model
from minicnn.saving import build_model, load_weights, save_weights

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def save_pretrained(model: Model, folder: Path, *, card: str | None = None) -> None:
    """Write a model to a folder; of a compiled one also what it was compiled with, without the optimizer's state.

    `huggingface_hub.upload_folder(repo_id=..., folder_path=folder)` puts it on the Hub.

    Args:
        model: The model, built.
        folder: The folder, which is made.
        card: What README.md is to say, in Markdown; if None a few lines, unless there is one.

    Raises:
        RuntimeError: If the model is not built.
        TypeError: If an argument of a layer, loss, metric or optimizer is no plain data, such as a function.
        OSError: If a file cannot be written.
        ImportError: If safetensors is missing.
    """
    about = {"library_name": "minicnn", "minicnn": minicnn.__version__, **describe(model)}
    text = json.dumps(about, indent=2, allow_nan=False) + "\n"
    write_file(os.path.join(folder, CONFIG), text.encode(), folders=True)
    save_weights(model, os.path.join(folder, WEIGHTS))
    there = os.path.join(folder, CARD)
    if card is not None or not os.path.exists(there):
        write_file(there, (_card(model) if card is None else card).encode())


def load_pretrained(
    name: Path, *, revision: str | None = None, backend: str | Backend | None = None,
    custom_objects: Mapping[str, type[Any]] | None = None,
) -> Model:  # fmt: skip
    """A model from a folder that `save_pretrained` wrote, or from the Hugging Face Hub.

    Args:
        name: Path of a folder; if there is none, the name of a repository, such as "someone/digits", which
            huggingface_hub downloads or has in its cache.
        revision: Branch, tag or commit of the repository.
        backend: See `Model`.
        custom_objects: Classes that are not minicnn's own, by name: layers, losses, metrics ...

    Raises:
        SavedModelError: If a file is damaged, or not the file of a model; a ValueError.
        OSError: If the folder or the repository cannot be read.
        ImportError: If safetensors is missing, or huggingface_hub for a repository.
    """
    folder = os.fspath(name) if os.path.isdir(name) else _downloaded(os.fspath(name), revision)
    path = os.path.join(folder, CONFIG)
    chosen = None if backend is None else get_backend(backend)
    try:
        about = read_json(path)
        if not isinstance(about, dict) or about.get("library_name") != "minicnn":
            raise ValueError("its library_name is not minicnn")
        model = build_model(about, chosen, custom_objects or {})
    except OSError:
        raise
    except Exception as error:
        wrong = f"its model cannot be built ({type(error).__name__}: {error})"
        remedy = "Pass all classes that are not minicnn's own as custom_objects, or save the model again"
        raise SavedModelError(path, wrong, remedy) from error
    load_weights(model, os.path.join(folder, WEIGHTS))
    return model


def _downloaded(name: str, revision: str | None) -> str:
    """The folder in which huggingface_hub has the files of a repository."""
    if name.count("/") > 1 or name.startswith((".", "/")):
        raise FileNotFoundError(
            "A model is in a folder, or in a repository of the Hugging Face Hub, owner/name. Received: "
            f"{name!r}, which is no folder. Look at the path."
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        message = f"Models are downloaded from the Hub by huggingface_hub: {install('hub')}. A folder needs none."
        raise ImportError(message, name="huggingface_hub") from error
    return str(snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))


def _card(model: Model) -> str:
    return f"""---
library_name: minicnn
---

# {model.name}

A network of minicnn with {model.count_params():,} weights: inputs {model.input_shape}, outputs {model.output_shape}.

```py
from minicnn.interop import load_pretrained

model = load_pretrained("owner/name")  # or this folder
```

```text
{model.summary(print_fn=None)}
```
"""
