"""Options of the CUDA backends: each thing that they do to be fast, switched by itself."""

from __future__ import annotations

from dataclasses import dataclass

PRODUCTS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Options:
    """Switches for each thing that a CUDA backend does to be fast.

    A backend that cannot do what an option asks for refuses it when it is made, and names it.

    Attributes:
        fused: Several operations in one kernel, elementwise ones without memory in between; with `tiled` (and on cupy)
            row-wise regions as well.
        tiled: Convolutions, products and reductions by tiles in shared memory, rather than a thread for each result.
        tensor_cores: Whether tensor cores may be used: for convolutions and products of float32 by tiles, with operands
            split into numbers that keep float32's accuracy (compute capability 8.0 and later), and for regions that
            begin with rows in memory. numba_cuda has no kernels that use them.
        products: Precision in which tensor cores multiply, unless the model's policy says: "float32", "bfloat16" or
            "float16". Sums are float32. Refused where products are not on tensor cores, if it is not "float32".
        pipelined: In mixed precision, convolutions of operands that are stored in 16 bits bring them to shared memory
            some steps ahead (cp.async), filters are rounded once a step, and threads of elementwise kernels make up to
            eight neighbours.
        second_stream: Weight gradients, and what else only updates wait for, go on beside the gradients of images, in a
            stream of their own. On cupy, in graphs.
        graph: Whole steps, and many at once, captured in CUDA graphs.
        block: Threads of a block of the kernels without tiles.
        resident: Data sets stay on the device if they fit; otherwise batches come from the host, copied while earlier
            ones are computed.
        pinned: Batches from the host go through memory from which the device copies by itself.
        data_bytes: Memory of the device for data sets; None for four fifths of what is free.
    """

    fused: bool = True
    tiled: bool = True
    tensor_cores: bool = True
    products: str = "float32"
    pipelined: bool = True
    second_stream: bool = True
    graph: bool = True
    block: int = 256
    resident: bool = True
    pinned: bool = True
    data_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.block not in (32, 64, 128, 256, 512, 1024) or (self.fused and self.block != 256):
            raise ValueError(
                "block is a power of two from 32 to 1024, and other than 256 only without fusion. "
                f"Received: block={self.block}, fused={self.fused}. Use Options(fused=False, block={self.block})."
            )
        if self.products not in PRODUCTS:
            raise ValueError(f"products is one of {', '.join(PRODUCTS)}. Received: {self.products!r}.")
        if self.data_bytes is not None and self.data_bytes < 0:
            raise ValueError(f"data_bytes is a number of bytes, or None. Received: {self.data_bytes}.")


NAIVE = Options(fused=False, tiled=False, graph=False)
