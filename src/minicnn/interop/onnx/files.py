"""ONNX files, read as data: every size is checked before memory is taken, and nothing is run."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from minicnn.files import SavedModelError
from minicnn.interop.onnx.tensors import HostArray

MOST_BYTES = 2**31 - 1  # of a protobuf
_DATA = {  # where a tensor has its elements, if they are not bytes; and integers that stand for shorter types
    "float32": "float_data", "float64": "double_data", "int64": "int64_data", "uint64": "uint64_data",
    "uint32": "uint64_data",
    **dict.fromkeys(("int32", "int16", "int8", "uint16", "uint8", "bool", "float16"), "int32_data"),
}  # fmt: skip


def load(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The message in an ONNX file, without external data.

    Raises:
        OSError: If it cannot be read.
        SavedModelError: If it is no ONNX file.
    """
    with open(path, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            raise _no_model(path, f"it has {about.st_size} bytes, or is no regular file")
        data = file.read()
    try:
        model = parsed(data)
    except Exception as error:  # protobuf has several
        raise _no_model(path, f"it is damaged, or no ONNX file ({error})") from error
    if not model.graph.node or not model.opset_import:
        raise _no_model(path, "there is no graph in it")
    return model


def parsed(data: bytes) -> onnx.ModelProto:
    """The message in the bytes of a file."""
    model = onnx.ModelProto()
    model.ParseFromString(data)
    return model


def _no_model(path: str | os.PathLike[str], wrong: str) -> SavedModelError:
    return SavedModelError(path, wrong, "Export it again, or use another copy")


class Tensors:
    """The arrays of a file.

    Args:
        path: The file; arrays of its own may be in files of the same folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._folder = path, Path(path).resolve().parent

    def array(self, tensor: onnx.TensorProto) -> HostArray:
        """The elements of a tensor.

        Raises:
            SavedModelError: If they are not all there, or of a type that NumPy does not have.
        """
        shape = tuple(tensor.dims)
        try:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        except KeyError:
            dtype = np.dtype(object)
        if dtype.name not in _DATA or any(n < 0 for n in shape):
            raise self._wrong(tensor, f"type {tensor.data_type} and dimensions {list(shape)}")
        count = math.prod(shape)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            data = self._external(tensor, count * dtype.itemsize)
        elif tensor.HasField("raw_data"):
            data = tensor.raw_data
        else:
            return self._listed(tensor, dtype, shape)
        if len(data) != count * dtype.itemsize:
            raise self._wrong(tensor, f"{len(data)} bytes for {count} elements of {dtype}")
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def _listed(self, tensor: onnx.TensorProto, dtype: np.dtype[Any], shape: tuple[int, ...]) -> HostArray:
        elements = getattr(tensor, _DATA[dtype.name])
        if len(elements) != math.prod(shape):
            raise self._wrong(tensor, f"{len(elements)} elements for dimensions {list(shape)}")
        if dtype.name == "float16":
            return np.asarray(elements, np.uint16).view(np.float16).reshape(shape)
        return np.asarray(elements).astype(dtype).reshape(shape)

    def _external(self, tensor: onnx.TensorProto, size: int) -> bytes:
        """Bytes of a file beside this one."""
        about = {entry.key: entry.value for entry in tensor.external_data}
        location = about.get("location", "")
        try:
            offset, length = int(about.get("offset", 0)), int(about.get("length", size))
        except ValueError:
            offset = length = -1
        target = (self._folder / location).resolve()
        if not location or not target.is_relative_to(self._folder) or offset < 0 or length != size:
            raise self._wrong(tensor, f"data in {location!r} at {offset}, which are not {size} bytes in its own folder")
        with open(target, "rb") as file:
            there = os.fstat(file.fileno())
            if not stat.S_ISREG(there.st_mode) or offset + length > there.st_size:
                raise self._wrong(tensor, f"{length} bytes at {offset} of {location!r}, which has {there.st_size}")
            file.seek(offset)
            return file.read(length)

    def _wrong(self, tensor: onnx.TensorProto, what: str) -> SavedModelError:
        return _no_model(self.path, f"the tensor {tensor.name!r} has {what}")


def attributes(node: onnx.NodeProto, tensors: Tensors) -> dict[str, Any]:
    """The attributes of an operator as plain data and arrays; those that are graphs are left out."""
    values: dict[str, Any] = {}
    for a in node.attribute:
        if a.type == onnx.AttributeProto.TENSOR:
            values[a.name] = tensors.array(a.t)
        elif a.type in (onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT):
            values[a.name] = helper.get_attribute_value(a)
        elif a.type == onnx.AttributeProto.STRING:
            values[a.name] = a.s.decode(errors="replace")
        elif a.type in (onnx.AttributeProto.FLOATS, onnx.AttributeProto.INTS):
            values[a.name] = list(helper.get_attribute_value(a))
    return values
