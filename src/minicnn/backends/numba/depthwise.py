"""Depthwise convolution on blocked images: each channel c makes the channels c * M ... c * M + M - 1.

Tiles are some channels at one position: every tap is a load of the image and a load of weights for each multiply-add,
so memory bounds the speed, not the multiply-adds.
"""

from __future__ import annotations

from minicnn.backends.numba.correlate import Line, line_numbers
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES
from minicnn.backends.numba.short import bytes_of, load_of, store_of
from minicnn.backends.numba.weights import lanes_apart, part_bytes

CHANNELS = 8


def depthwise(
    name: str, rows: list[Line], columns: list[Line], *, channels: int, multiplier: int, kernel_width: int,
    out_size: tuple[int, int], gradient: bool, pieces: int, dtype: str = "float32", result: str = "float32",
) -> KernelCode:  # fmt: skip
    """Forward pass, or input gradient: y (.., C * M) from x (.., C), or the other way; one item a piece of a block.

    Args:
        name: For `explain`.
        rows: Geometries along the rows; their outputs together are all rows.
        columns: The same along the columns.
        channels: C.
        multiplier: M.
        kernel_width: KW.
        out_size: (height, width) of the result.
        gradient: Whether x has the C * M channels and y the C.
        pieces: Into how many pieces a block is cut, each some rows.
        dtype: Type of x.
        result: Type of y.
    """
    out = Lines()
    load, x_bytes, y_bytes = load_of(dtype), bytes_of(dtype), bytes_of(result)
    c, m = out.all_numbers(channels=channels, multiplier=multiplier)
    # Tiles of one width, of which the last overlaps: channels that are done twice get the same values, and no second
    # kernel is needed.
    width = even_tile(channels, CHANNELS)
    many = f"{c} * {m}"
    x_channels, y_channels = (many, c) if gradient else (c, many)
    out_h, out_w, kw = out.all_numbers(out_h=out_size[0], out_w=out_size[1], kernel_width=kernel_width)
    with out.pieces(pieces):
        for i, row in enumerate(rows):
            r = line_numbers(out, f"r{i}", row)
            for j, column in enumerate(columns):
                t = line_numbers(out, f"c{j}", column)
                with (
                    out.block(f"for r in {out.rounds(r['count'])}:"),
                    out.block(f"for t in range({t['count']}):"),
                    out.block(f"for cq in range(0, {c}, {width}):"),
                    out.block("for k in range(1):" if gradient else f"for k in range({m}):"),
                ):
                    out(f"c = min(cq, {c} - {width})", *(f"a{p} = splat(float32(0))" for p in range(width)))
                    out(f"yi = (block * {out_h} + {r['start']} + r * {r['out_step']}) * {out_w}")
                    out(f"yi = y + (yi + {t['start']} + t * {t['out_step']}) * ({y_channels}) * {y_bytes}")
                    with out.block(f"for kh in range({r['taps']}):"):
                        out(f"i = r * {r['in_step']} + {r['offset']} + kh * {r['offset_step']}")
                        with out.block(f"if 0 <= i < {r['size']}:"), out.block(f"for kw in range({t['taps']}):"):
                            out(f"j = t * {t['in_step']} + {t['offset']} + kw * {t['offset_step']}")
                            with out.block(f"if 0 <= j < {t['size']}:"):
                                out(f"wi = ({r['weight']} + kh * {r['weight_step']}) * {kw}")
                                out(f"wi += {t['weight']} + kw * {t['weight_step']}")
                                out(f"wi = w + (wi * {c} + c) * {m} * 4")
                                out(f"xi = ((block * {r['size']} + i) * {t['size']} + j) * ({x_channels})")
                                if gradient:
                                    out(f"xi = x + (xi + c * {m}) * {x_bytes}")
                                    with out.block(f"for q in range({m}):"):
                                        for p in range(width):
                                            at = f"({p} * {m} + q)"
                                            x_at = f"{load}(xi + {at} * {x_bytes})"
                                            out(f"a{p} = vfma({x_at}, bload(wi + {at} * 4), a{p})")
                                else:
                                    out(f"xi = x + (xi + c) * {x_bytes}", "wi += k * 4")
                                    for p in range(width):
                                        x_at = f"{load}(xi + {p * x_bytes})"
                                        out(f"a{p} = vfma({x_at}, bload(wi + {p} * {m} * 4), a{p})")
                    for p in range(width):
                        at = f"(c + {p})" if gradient else f"((c + {p}) * {m} + k)"
                        out(f"{store_of(result)}(yi + {at} * {y_bytes}, a{p})")
    return out.source(name, "x", "w", "y")


def weight_gradient(row: Line, column: Line, *, channels: int, multiplier: int, parts: int, blocks: int,
                    dtype: str) -> KernelCode:  # fmt: skip
    """Part of dw (KH, KW, C, M) from x (.., C) and dy (.., C * M), both 0 beyond the last sample.

    One item a row of a block.
    """
    out = Lines()
    load, each = load_of(dtype), bytes_of(dtype)
    size = row.taps * column.taps * channels * multiplier
    width, apart = even_tile(channels, CHANNELS), lanes_apart(size)
    c, m = out.all_numbers(channels=channels, multiplier=multiplier)
    nbytes = out.number("part_bytes", part_bytes(size))
    r, t = line_numbers(out, "r", row), line_numbers(out, "c", column)
    step = BYTES if apart else 4
    with out.parts(parts, blocks, row.count):
        out(f"sums = parts + part * {nbytes}")
        with out.block(f"for k in range({nbytes} // 4 * fresh):"):
            out("fstore(sums + k * 4, float32(0))")
        with (
            out.block(f"for block in range(u0 // {r['count']}, (u1 - 1) // {r['count']} + 1):"),
            out.block(f"for cq in range(0, {c}, {width}):"),
            out.block(f"for k in range({m}):"),
            out.block(f"for kh in range({r['taps']}):"),
            out.block(f"for kw in range({t['taps']}):"),
        ):
            # Sums are added to memory, so the last tile must not do channels that the one before did.
            out(f"c = min(cq, {c} - {width})", "skip = cq - c")
            out(*(f"a{q} = splat(float32(0))" for q in range(width)))
            out(f"i0 = {r['offset']} + kh * {r['offset_step']}", f"j0 = {t['offset']} + kw * {t['offset_step']}")
            out(f"ca = max(0, -(j0 // {t['in_step']}))")
            out(f"cz = min({t['count']}, ({t['size']} - 1 - j0) // {t['in_step']} + 1)")
            first = f"max(max(0, u0 - block * {r['count']}), -(i0 // {r['in_step']}))"
            last = f"min(u1 - block * {r['count']}, ({r['size']} - 1 - i0) // {r['in_step']} + 1)"
            last = f"min({r['count']}, {last})"
            with out.block(f"for q in range({first}, {last}):"):
                out(f"i = (block * {r['size']} + q * {r['in_step']} + i0) * {t['size']}")
                out(f"xi = x + ((i + ca * {t['in_step']} + j0) * {c} + c) * {each}")
                out(f"yi = dy + ((((block * {r['count']} + q) * {t['count']} + ca) * {c} + c) * {m} + k) * {each}")
                with out.block("for u in range(cz - ca):"):
                    for q in range(width):
                        out(f"a{q} = vfma({load}(xi + {q * each}), {load}(yi + {q} * {m} * {each}), a{q})")
                    out(f"xi += {t['in_step']} * {c} * {each}", f"yi += {c} * {m} * {each}")
            out(f"s = sums + (((kh * {t['taps']} + kw) * {c} + c) * {m} + k) * {step}")
            for q in range(width):
                with out.block(f"if {q} >= skip:"):
                    at = f"s + {q} * {m} * {step}"
                    out(
                        f"vstore({at}, vadd(vload({at}), a{q}))" if apart else f"fstore({at}, fload({at}) + vsum(a{q}))"
                    )
    return out.source("depthwise_conv2d_weight_gradient", "dy", "x", "parts")
