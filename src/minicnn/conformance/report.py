"""The report: checks run in processes of their own, as a library may bring down the one that it is in."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Order = tuple[str, str]  # kind of the check, name of the primitive or network
KINDS = ("primitive", "gradient", "training")
LIMIT_S = 300.0


def conformance(
    namespace: str, shim: str | None = None, *, limit_s: float = LIMIT_S, tell: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """Check a namespace.

    A process makes one check after the other. If it dies, or takes too long, that check has failed, and another process
    goes on with the next.

    Args:
        namespace: Name of the module, such as "dask.array".
        shim: Name of a module, or path of a file of Python, whose names stand in place of the namespace's: see
            `minicnn.backends.NamespaceBackend`.
        limit_s: Seconds that a check may take.
        tell: Called with a line after each check.

    Returns:
        Plain data: "namespace", "version" and "shim"; by kind of check how many have "passed" and how many there are in
        "total"; "failures" with the error of each; names that are "missing" in the namespace; "seconds" of a training
        step by primitive, [here, in NumPy].

    Raises:
        ImportError: If the namespace or the shim is missing.
    """
    from minicnn.conformance.checks import DIFFERENTIABLE, NETWORKS, PRIMITIVES

    orders: list[Order] = [("version", "")]
    orders += [
        (kind, n) for kind, names in zip(KINDS, (PRIMITIVES, DIFFERENTIABLE, NETWORKS), strict=True) for n in names
    ]
    orders.append(("times", "platforms"))
    results: list[dict[str, Any]] = []
    while len(results) < len(orders):
        for result in _process(namespace, shim, orders[len(results) :], limit_s):
            kind, name = orders[len(results)]
            results.append(result)
            if kind == "version" and result["error"]:
                raise ImportError(f"{namespace}, or its shim, cannot be used: {result['error']}", name=namespace)
            if tell and kind in KINDS:
                tell(f"{kind} {name}: {result['error'] or 'as in NumPy'}")
    return _report(namespace, shim, list(zip(orders, results, strict=True)))


def _process(namespace: str, shim: str | None, orders: Sequence[Order], limit_s: float) -> Iterator[dict[str, Any]]:
    """The results of one process, up to the first that it does not survive."""
    command = [sys.executable, "-P", "-m", "minicnn.conformance.worker", namespace, shim or ""]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("A process has pipes.")
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
        reader.start()
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        process.stdin.write(json.dumps(orders))
        process.stdin.close()
        count = 0
        try:
            while count < len(orders):
                timer = threading.Timer(limit_s, end)
                timer.start()
                line = process.stdout.readline()
                timer.cancel()
                if not line:
                    break
                count += 1
                yield json.loads(line)
        finally:
            process.kill()
        process.wait()
        reader.join()
    if count < len(orders):
        how = f"took more than {limit_s:g} s" if late.is_set() else f"ended its process with {process.returncode}"
        last = errors[-1].strip() if errors else ""
        yield {"error": f"{how}. {last:.200}".strip(), "missing": None}


def _report(namespace: str, shim: str | None, results: Sequence[tuple[Order, dict[str, Any]]]) -> dict[str, Any]:
    failures = {f"{kind} {name}": r["error"] for (kind, name), r in results if kind in KINDS and r["error"]}
    return {
        "namespace": namespace,
        "version": results[0][1]["version"],
        "shim": shim,
        "total": {kind: sum(k == kind for (k, _), _ in results) for kind in KINDS},
        "passed": {kind: sum(k == kind and not r["error"] for (k, _), r in results) for kind in KINDS},
        "failures": failures,
        "missing": sorted({r["missing"] for _, r in results if r["missing"]}),
        "seconds": results[-1][1].get("seconds", {}),
    }
