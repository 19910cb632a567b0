"""One graph for any batch of two that were written for two batch sizes.

Operators are the same; a constant that differs is made of the number N of samples, which the graph reads off its
input: it is k N, k / N, or an array of one number or of 0, 1 ... whose length is such a number. Operators never have
attributes that depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.onnx.tensors import HostArray, Operator, Sheet

SIZES = (13, 17)  # two primes, and no usual length of another axis
SAMPLES = "samples/N"


class Merged:
    """Operators and constants of a graph for any batch.

    Args:
        sheets: The graph for each of `SIZES`.
        batch: Name of an input whose first axis is the batch.

    Attributes:
        operators: Operators, those that make constants of the batch first.
        constants: Constants that do not depend on it, by name.

    Raises:
        NoCounterpartError: If something depends on the batch otherwise; names the operator that reads it.
    """

    def __init__(self, sheets: tuple[Sheet, Sheet], batch: str) -> None:
        first, second = sheets
        pairs = zip_longest(first.operators, second.operators)
        other = next((o or p for o, p in pairs if o != p), None)
        if other is not None:
            raise NoCounterpartError(f"{other.name}, which is another operator for another batch size")
        self.operators: list[Operator] = []
        self.constants: dict[str, HostArray] = {}
        self._batch, self._known, self._new = batch, dict[Any, str](), dict[str, str]()
        shapes = {o.inputs[1] for o in first.operators if o.kind == "Reshape"}
        readers = {name: o.name for o in reversed(first.operators) for name in o.inputs}
        for name, array in first.constants.items():
            if name in readers:
                try:
                    self._new[name] = self._constant(array, second.constants[name], open_ended=name in shapes)
                except NoCounterpartError as error:
                    raise NoCounterpartError(f"{readers[name]} ({error})") from None
        for o in first.operators:
            inputs = tuple(self._new.get(name, name) for name in o.inputs)
            self.operators.append(Operator(o.kind, o.name, inputs, o.outputs, o.attributes))

    def _constant(self, p: HostArray, q: HostArray, *, open_ended: bool = False) -> str:
        """The name of a constant that is p for the one batch size and q for the other."""
        key = (p.dtype.str, p.shape, p.tobytes(), q.shape, q.tobytes(), open_ended)
        if key not in self._known:
            self._known[key] = self._new_constant(p, q, open_ended)
        return self._known[key]

    def _new_constant(self, p: HostArray, q: HostArray, open_ended: bool) -> str:
        if p.shape != q.shape:
            return self._of_length(p, q)
        if np.array_equal(p, q, equal_nan=p.dtype.kind == "f"):
            return self._fixed(p)
        a, b = SIZES
        if p.dtype.kind in "iu":
            per_sample = np.where(p == q, 0, p.astype(np.int64) // a)
            if not np.array_equal(np.where(p == q, q, per_sample * b), q):
                raise NoCounterpartError(f"the numbers {p.tolist()} for {a} samples, {q.tolist()} for {b}")
            if open_ended and np.count_nonzero(per_sample) == 1:
                return self._fixed(np.where(per_sample != 0, -1, p))
            return self._integers(per_sample, np.where(p == q, p, 0), p.dtype.name)
        factor, inverse = _factor(p, q, [1 / a, 1 / b]), _factor(p, q, [a, b])
        if factor is None and inverse is None:
            raise NoCounterpartError(
                f"{p.reshape(-1)[:3].tolist()} for {a} samples, {q.reshape(-1)[:3].tolist()} for {b}"
            )
        samples = self._cast(self._samples(), p.dtype.name)
        kind, k = ("Mul", factor) if factor is not None else ("Div", inverse)
        result = self._emit(kind, self._fixed(np.asarray(k, p.dtype)), samples)
        return result if p.ndim else self._scalar(result)

    def _of_length(self, p: HostArray, q: HostArray) -> str:
        """An array whose shape depends on the batch."""
        lengths = [np.asarray(array.shape, np.int64) for array in (p, q)]
        if p.ndim == q.ndim and p.size and q.size and (p == p.flat[0]).all() and (q == q.flat[0]).all():
            everywhere = self._constant(np.asarray(p.flat[0]), np.asarray(q.flat[0]))
            return self._emit("Expand", everywhere, self._constant(*lengths))
        if p.ndim == q.ndim == 1 and np.array_equal(p, np.arange(len(p))) and np.array_equal(q, np.arange(len(q))):
            limit = self._constant(*(np.asarray(length[0], p.dtype) for length in lengths))
            return self._emit("Range", self._fixed(np.asarray(0, p.dtype)), limit, self._fixed(np.asarray(1, p.dtype)))
        raise NoCounterpartError(f"an array of shape {p.shape} for {SIZES[0]} samples, {q.shape} for {SIZES[1]}")

    def _integers(self, per_sample: HostArray, fixed: HostArray, dtype: str) -> str:
        """per_sample N + fixed, as shapes and counts are."""
        result = self._emit("Mul", self._samples(), self._fixed(np.asarray(per_sample, np.int64)))
        if fixed.any():
            result = self._emit("Add", result, self._fixed(np.asarray(fixed, np.int64)))
        return self._cast(result if fixed.ndim else self._scalar(result), dtype)

    def _scalar(self, name: str) -> str:
        return self._emit("Squeeze", name, self._fixed(np.zeros(1, np.int64)))

    def _samples(self) -> str:
        """N, as int64 of shape (1,)."""
        if SAMPLES not in self._known:
            self.operators.insert(0, Operator("Shape", SAMPLES, (self._batch,), (SAMPLES,), {"start": 0, "end": 1}))
            self._known[SAMPLES] = SAMPLES
        return SAMPLES

    def _cast(self, name: str, dtype: str) -> str:
        return name if dtype == "int64" else self._emit("Cast", name, to=np.dtype(dtype))

    def _fixed(self, array: HostArray) -> str:
        """A constant that does not depend on the batch; the same one has one name."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = name = f"constant_{len(self.constants)}"
            self.constants[name] = array
        return self._known[key]

    def _emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        key = (kind, inputs, repr(attributes))
        if key not in self._known:
            self._known[key] = name = f"samples/{kind}_{len(self.operators)}"
            self.operators.append(Operator(kind, name, inputs, (name,), attributes))
        return self._known[key]


def _factor(p: HostArray, q: HostArray, scales: Sequence[float]) -> HostArray | None:
    """Numbers that p and q are, within a unit in the last place, over two scales; None if there are none."""
    k = p.astype(np.float64) * scales[0]
    k = np.asarray([float(f"{v:.7g}") for v in k.reshape(-1)]).reshape(k.shape)  # what was rounded, most likely
    near = np.finfo(p.dtype).eps
    fits = all(np.allclose(array * scale, k, rtol=near, atol=0) for array, scale in zip((p, q), scales, strict=True))
    return k if fits else None


def dims(p: Sequence[int], q: Sequence[int]) -> list[int | str]:
    """A shape for any batch, of those for two."""
    return [m if m == n else _length(m, n) for m, n in zip(p, q, strict=True)]


def _length(m: int, n: int) -> str:
    a, b = SIZES
    if m * b != n * a:
        raise NoCounterpartError(f"a length of {m} for {a} samples, {n} for {b}")
    return "N" if m == a else f"{m // a}*N"
