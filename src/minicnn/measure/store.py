"""Results on disk: a JSON file for each finished measurement, so that an interrupted study goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicnn.files import read_json, write_file

NOT_MEASURED = "not measured yet"


@dataclass(frozen=True)
class Record:
    """A finished measurement.

    Attributes:
        inputs: What its result depends on; files say "given".
        stamp: Machine and versions.
        result: What was measured; plain data.
        others: Share of the cores' time that other programs took meanwhile; None if it is not known.
    """

    inputs: Mapping[str, Any]
    stamp: Mapping[str, Any]
    result: Any
    others: float | None = None


class ResultStore:
    """A folder of results.

    A result is kept as long as all that it depends on is what it was: the sizes, the machine, the versions.

    Args:
        folder: The folder; made when the first result is kept.
        stamp: Machine and versions, as plain data.
    """

    def __init__(self, folder: Path, stamp: Mapping[str, Any]) -> None:
        self.folder, self.stamp = folder, plain(stamp)

    def find(self, name: str, inputs: Mapping[str, Any]) -> Record | str:
        """The record of a measurement, or why there is none that can be used.

        Args:
            name: Name of the measurement.
            inputs: What its result depends on.
        """
        record = self.read(name)
        if isinstance(record, str):
            return record
        changed = [k for k in {**record.inputs, **inputs} if plain(inputs).get(k) != record.inputs.get(k)]
        changed += [k for k in {**record.stamp, **self.stamp} if self.stamp.get(k) != record.stamp.get(k)]
        return f"measured with other {', '.join(changed)}" if changed else record

    def read(self, name: str) -> Record | str:
        """The record of a measurement whatever it depends on, or why there is none."""
        path = self.path(name)
        try:
            value = read_json(path)
        except FileNotFoundError:
            return NOT_MEASURED
        except (OSError, ValueError) as error:
            return f"{path} cannot be read ({error})"
        parts = value if isinstance(value, dict) else {}
        if (
            parts.keys() - {"others"} != {"given", "stamp", "result"}
            or not all(isinstance(parts[k], dict) for k in ("given", "stamp"))
            or not isinstance(parts.get("others"), int | float | None)
        ):
            return f"{path} is no record of a measurement"
        return Record(parts.pop("given"), **parts)

    def keep(self, name: str, inputs: Mapping[str, Any], result: Any, others: float | None = None) -> Record:
        """Store the result of a measurement: the file is whole, or does not exist.

        Raises:
            ValueError: If it is not plain data with finite numbers.
            OSError: If the file cannot be written.
        """
        record = Record(plain(inputs), self.stamp, plain(result), others)
        parts = {"given": record.inputs, "stamp": record.stamp, "result": record.result, "others": record.others}
        write_file(self.path(name), (json.dumps(parts, indent=1, allow_nan=False) + "\n").encode(), folders=True)
        return record

    def path(self, name: str) -> Path:
        """The file of a measurement."""
        return self.folder / f"{re.sub(r'[^a-z0-9_.]+', '-', name.lower()).strip('-')}.json"


def plain(value: Any) -> Any:
    """A copy as JSON holds it: lists for tuples, strings for keys.

    Raises:
        ValueError: If it holds anything but numbers that are finite, strings, None, lists and dicts.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A result is plain data with finite numbers. Received: {error}. Use None for what is not there."
        ) from error
