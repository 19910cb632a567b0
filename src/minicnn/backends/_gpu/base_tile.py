"""Tiles: the pieces of a result that blocks compute. Each kind is a class, in one module with all that is known of it.

That is its sizes by name; the candidates, of which `best` takes the one with the least modelled time; what a launch
needs of a GPU for it; and its text: the kernel language prints a plain tile, and an engine has a template for all
others, of the class's name, which takes the sizes by theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Tile of a kernel: the piece of a result that a block computes at a time.

    Attributes:
        blocks: Blocks of the launch.
        threads: Threads of a block.
        splits: Into how many partial sums each sum is split (split-K).
        precision: In which operands are multiplied on tensor cores; None if they are not, but in their own.
        shared: Bytes of `dynamic_shared()` that a block needs, beside what its text declares.
        resident: Blocks of a multiprocessor that the compiler leaves registers for.
        stages: Steps of a sum that shared memory holds, ahead of the tensor cores; 0: it is filled for each.
        warpgroups: Whether tensor cores take operands from shared memory for four warps at a time (wgmma).
        score: By which it was chosen: the less, the faster; comparable with others of its kind.
        has_template: Whether engines have a template for it, where the kernel language does not say what it does.
    """

    blocks: int
    threads: int
    splits: int = 1
    precision: str | None = None
    shared: int = 0
    resident: int = 1
    stages: int = 0
    warpgroups: bool = False
    score: float = 0.0
    has_template: ClassVar[bool] = False

    @property
    def sizes(self) -> dict[str, Any]:
        """Numbers that a template takes, by name: not those that the launch alone is told, nor why it was chosen."""
        launch = ("blocks", "precision", "shared", "resident", "warpgroups", "score")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in launch}

    @property
    def chosen(self) -> tuple[tuple[str, Any], ...]:
        """Choices for people, by name: its sizes, then those that all tiles have."""
        of_all = {f.name for f in fields(Tile)}
        # Only what was chosen against a default: a reader looks for what is particular about this tile.
        names = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        names = [name for name in names if name not in ("blocks", "threads", "score")]
        return tuple((name, getattr(self, name)) for name in sorted(names, key=of_all.__contains__))
