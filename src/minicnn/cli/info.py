"""`minicnn info`: what there is to work with, what is missing, and how to get it."""

from __future__ import annotations

import inspect
import json
import os
from typing import Any

import click

from minicnn import backends, data, machine
from minicnn.cli.tables import console, table
from minicnn.data.files import ENVIRONMENT
from minicnn.data.places import PLACES
from minicnn.extras import install

# Extra that a missing package comes with.
EXTRAS = {"torch": "torch", "jax": "jax", "array-api-strict": "test"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool) -> None:
    """Say what was found: backends and devices, versions, the CPU and its BLAS, data sets."""
    # Backends first: they load libraries with threads of their own.
    facts: dict[str, Any] = {
        "backends": {name: _backend(name) for name in backends.names()},
        "packages": _packages(),
        "data": {name: _data(name) for name in PLACES},
    }
    facts = {"machine": machine.facts(), "avx512": machine.processor().avx512, "notes": _notes(), **facts}
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _show(facts)


def _backend(name: str) -> dict[str, Any]:
    try:
        facts = backends.backend_class(name).describe()
    except Exception as error:  # a library may be there and broken in any way
        missing = isinstance(error, ImportError)
        return {"found": False, "facts": {}, "remedy": str(error) if missing else f"{type(error).__name__}: {error}"}
    return {"found": True, "facts": facts, "remedy": None}


def _packages() -> dict[str, dict[str, str | None]]:
    versions = machine.versions()
    return {
        name: {"version": versions[name], "remedy": None if versions[name] else install(EXTRAS.get(name, "cli"))}
        for name in machine.PACKAGES
    }


def _data(name: str) -> dict[str, str | None]:
    try:
        place = data.locate(name)
    except data.DataError as error:
        return {"place": None, "remedy": str(error)}
    if place is not None:
        return {"place": str(place.resolve()), "remedy": None}
    fetched = "download" in inspect.signature(data.LOADERS[name]).parameters
    return {
        "place": None,
        "remedy": f"{'downloaded when asked for; else ' if fetched else ''}name its folder by {ENVIRONMENT}",
    }


def _notes() -> list[str]:
    notes = machine.warnings()
    if machine.set_by_us:
        value = os.environ[machine.CORETYPE]
        notes.append(
            f"This command has set {machine.CORETYPE}={value}, as OpenBLAS may not know this CPU. For programs of your "
            f"own: export {machine.CORETYPE}={value} before Python starts."
        )
    return notes


def _show(machine_facts: dict[str, Any]) -> None:
    facts = machine_facts["machine"]
    versions = facts["versions"]
    out = console()
    out.print(f"minicnn {versions['minicnn']}, Python {versions['python']}, {facts['system']}")
    vectors = ", AVX-512" if machine_facts["avx512"] else ""
    out.print(f"CPU: {facts['cpu']}{vectors}, {facts['cores']} cores, {facts['memory_mb'] / 1024:.1f} GB of memory")
    out.print(f"BLAS: {facts['blas']}")
    out.print("Threads: " + (", ".join(f"{k} {v}" for k, v in facts["threads"].items()) or "unknown"))
    for note in machine_facts["notes"]:
        out.print(f"Note: {note}")
    rows = [
        [name, ", ".join(f"{k} {v}" for k, v in b["facts"].items()) if b["found"] else f"missing. {b['remedy']}"]
        for name, b in machine_facts["backends"].items()
    ]
    out.print()
    out.print(table("Backends", ["backend", "versions and devices"], rows))
    rows = [[name, p["version"] or f"missing: {p['remedy']}"] for name, p in machine_facts["packages"].items()]
    out.print()
    out.print(table("Packages", ["package", "version"], rows))
    rows = [[name, d["place"] or f"not found: {d['remedy']}"] for name, d in machine_facts["data"].items()]
    rows.append(["synthetic_digits", "drawn when asked for"])
    out.print()
    out.print(table("Data", ["data set", "place"], rows))
