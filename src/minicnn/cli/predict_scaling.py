"""`minicnn predict-scaling`: how a training would scale over ranks that need not be there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from minicnn import zoo
from minicnn.backends._gpu.costs import FITTED, unfitted
from minicnn.backends._gpu.device import KNOWN
from minicnn.cli.options import NETWORK, NameType, NumberType, image_shape, several
from minicnn.cli.tables import console, table
from minicnn.distribution import prediction
from minicnn.distribution.passes import BUCKET
from minicnn.distribution.prediction import side_by_side as rows
from minicnn.files import read_json, write_file
from minicnn.jobs.settings import usual_batch
from minicnn.measure import local_ranks

CPU, THIS, ALL = "cpu", "this", "all"
COLUMNS = ("step", "speed-up", "computes", "idle", "waits", "hidden", "sends", "memory", "how")
USUAL = ("step", "speed-up", "waits", "sends", "how")  # which fit 80 columns
MOST_RANKS = 1 << 20
VARIATION = 0.03  # of step times, where none were measured
TRIES = 3  # to measure a network, where other programs keep the cores busy
# Is measured beside what is asked for.
CALIBRATED = {"network": "platforms", "image": (28, 28, 1), "classes": 10, "batch": 256}


def rank_counts(value: Any) -> list[int]:
    """Numbers of ranks between commas; "..." goes on by the factor of the two before it."""
    if isinstance(value, list):
        return value
    parts = [p.strip() for p in str(value).split(",")]
    numbers = [int(p) if p.isascii() and p.isdecimal() and len(p) < 10 else 0 for p in parts]
    counts: list[int] = []
    for part, number, last in zip(parts, numbers, [*numbers[1:], 0], strict=True):
        if part == "..." and last and len(counts) >= 2 and counts[-1] % counts[-2] == 0 and counts[-1] > counts[-2]:
            factor = counts[-1] // counts[-2]
            while counts[-1] * factor < last:
                counts.append(counts[-1] * factor)
        elif 0 < number <= MOST_RANKS:
            counts.append(number)
        else:
            raise click.BadParameter(
                f"Ranks are numbers from 1 to {MOST_RANKS:,}, such as 1,2,4,...,1024. Received: {value!r}."
            )
    return list(dict.fromkeys(counts))


@click.command("predict-scaling")
@click.argument("network", type=NETWORK)
@click.option(
    "--ranks", type=rank_counts, default="1,2,4,...,1024", show_default=True, metavar="A,B,..", help="Numbers of ranks."
)
@click.option(
    "--network", "link", default="ethernet-10g", show_default=True, metavar="NAME[,KEY=VALUE..]",
    help=f"What connects ranks: {', '.join(prediction.known())}; {THIS}, as measured between local ranks; or such as "
    '"latency=50e-6,bandwidth=1.25e8". Keys: latency (s), bandwidth (bytes/s of a link), ranks_per_host, '
    "links_per_host, oversubscription, within (a network inside a host), most_ranks.",
)  # fmt: skip
@click.option(
    "--device", type=NameType("A device", lambda: [CPU, *KNOWN]), default=CPU, show_default=True, metavar="NAME",
    help=f"What a rank computes with: {CPU}, one core of this machine as measured; or a GPU: {', '.join(KNOWN)}.",
)  # fmt: skip
@click.option(
    "--batch-size", type=click.IntRange(min=1), metavar="N",
    help="Samples in a step: of all ranks (strong scaling) and of each (weak scaling).",
)  # fmt: skip
@click.option("--classes", type=click.IntRange(min=1), metavar="N", help="Classes; by default the network's own.")
@click.option("--image", type=image_shape, metavar="H,W,C", help="Size of an image; by default the network's own.")
@click.option(
    "--all-reduce", "algorithm", type=click.Choice(prediction.ALGORITHMS), default="fixed", show_default=True,
    help="How gradients are summed: in the fixed tree of shards, in a ring, or in a binary tree of ranks.",
)  # fmt: skip
@click.option("--shards", type=click.IntRange(min=1), metavar="N", help="Shards of a batch; one a rank by default.")
@click.option(
    "--bucket", type=NumberType(min=0), default=BUCKET / 1e6, show_default=True, metavar="MB",
    help="Size of the buckets in which gradients are summed during the backward pass; 0: all of them after it.",
)  # fmt: skip
@click.option(
    "--variation", type=NumberType(min=0, max=0.25, max_open=True), metavar="X",
    help=f"Standard deviation of a rank's step times, relative to their mean; as measured, or else {VARIATION}.",
)  # fmt: skip
@click.option("--calibrate", is_flag=True, help="Measure this machine anew; takes a minute.")
@click.option(
    "--calibration", "path", type=click.Path(dir_okay=False, path_type=Path), default=Path("runs/calibration.json"),
    show_default=True, metavar="FILE", help="File in which the measurements are kept.",
)  # fmt: skip
@click.option(
    "--columns", type=several("A column", lambda: [*COLUMNS, ALL]), default=USUAL, metavar="A,B,..",
    help=f"Columns: {', '.join(COLUMNS)}; or {ALL}. By default those that fit a terminal.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def predict_scaling(
    network: str, ranks: list[int], link: str, device: str, batch_size: int | None, classes: int | None,
    image: tuple[int, ...] | None, algorithm: str, shards: int | None, bucket: float, variation: float | None,
    calibrate: bool, path: Path, columns: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Predict how the training of NETWORK scales over ranks (processes) that need not be there.

    Prints for data, model, hybrid and pipeline parallelism the time of a step, how much of it is communication and
    waiting, the bytes that a rank sends, and its memory. First it prints its own errors: against this machine, where
    that was measured, and against published figures.
    """
    known = zoo.get_network(network)
    run = {
        "network": network, "image": image or known.input_shape, "classes": classes or known.num_classes,
        "batch": batch_size or usual_batch(network),
    }  # fmt: skip
    measured = _measured(path, run, anew=calibrate, needed=device == CPU or link == THIS)
    prediction = _predicted(run, ranks, link, device, measured, algorithm, shards, bucket, variation)
    if as_json:
        click.echo(json.dumps(_finite(prediction), indent=2))
    else:
        _show(prediction, COLUMNS if ALL in columns else columns)


def _measured(path: Path, run: Mapping[str, Any], *, anew: bool, needed: bool) -> prediction.Calibration | None:
    """Measurements of this machine: kept from before, or taken now if they are needed."""
    if path.exists() and not anew:
        try:
            stored = read_json(path)
            if stored["machine"] == local_ranks.name():
                return prediction.calibrate(stored, local_ranks.trace)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise click.ClickException(
                f"A calibration is what --calibrate has measured. Received: {path}. Measure anew with --calibrate."
            ) from error
    if not anew and not needed:
        return None
    click.echo("measuring this machine, for about a minute ...", err=True)
    for _ in range(TRIES):
        measurements = local_ranks.measure([run, CALIBRATED] if run["network"] != CALIBRATED["network"] else [run])
        calibration = prediction.calibrate(measurements, local_ranks.trace)
        if calibration.network is not None or not measurements["all_reduce"]:
            break
        click.echo(f"measuring again: {calibration.missing} ...", err=True)
    write_file(path, (json.dumps(measurements, indent=1) + "\n").encode(), folders=True)
    return calibration


def _predicted(
    run: Mapping[str, Any], ranks: Sequence[int], link: str, device: str, measured: prediction.Calibration | None,
    algorithm: str, shards: int | None, bucket: float, variation: float | None,
) -> dict[str, Any]:  # fmt: skip
    notes = []
    if link == THIS:
        if measured is None or measured.network is None:
            missing = "nothing was measured" if measured is None else measured.missing
            raise click.ClickException(
                f"--network {THIS} is what all-reduces between local ranks took. Received: {missing}. Give --calibrate "
                f"where MPI is installed and the cores are idle, or name one: {', '.join(prediction.known())}."
            )
        net = measured.network
    else:
        net = prediction.interconnect(link)
        notes.append(
            f"No all-reduce was measured on {net.name}: its latency and bandwidth are those of its description."
        )
    clock: prediction.Rates | prediction.PlannedGpu
    memory = None
    if device == CPU and measured is not None:
        clock = measured.clock(run["network"])
        if run["network"] not in measured.factors:
            notes.append(f"No step of {run['network']} was measured: give --calibrate to measure one.")
    else:
        gpu = KNOWN[device]
        clock, memory = prediction.PlannedGpu(gpu), float(gpu.memory)
        fitted = f"the model of tile times was fitted to an {FITTED.name}, not to it" if unfitted(gpu) else ""
        notes.append(
            f"No step was measured on {gpu.name} here: times are those of its plan{', and ' * bool(fitted)}{fitted}."
        )
    jitter: Sequence[float] = prediction.normal(VARIATION if variation is None else variation)
    if variation is None and measured is not None and device == CPU:
        jitter = measured.jitter
    elif variation is None:
        notes.append(f"How far step times vary was not measured there: {VARIATION} of their mean is assumed.")
    work = prediction.counted(partial(local_ranks.trace, run), clock, run["batch"])
    cut = measured.cut.get(run["network"], 0.0) if device == CPU and measured is not None else 0.0
    conditions = prediction.Conditions(net, jitter, algorithm, shards, 1e6 * bucket, cut, None, memory)
    alexnet = prediction.workload(partial(local_ranks.trace, {"network": "alexnet"}), [1])
    points = [*(measured.points if measured else ()), *prediction.published(alexnet)]
    if measured is None:
        notes.insert(0, "Nothing was measured on this machine: give --calibrate to compare the model with it.")
    elif measured.network is None:
        notes.insert(0, f"The network between ranks of this machine is not known: {measured.missing}.")
    until = work.hybrid_until
    return {
        "network": run["network"], "image": list(run["image"]), "classes": run["classes"], "batch": run["batch"],
        "device": device, "link": asdict(net), "all_reduce": algorithm,
        "errors": [{**asdict(p), "error": p.error} for p in points],
        "notes": notes,
        "hybrid_until_batch": math.floor(until) if math.isfinite(until) else None,
        **{
            kind: [
                {**asdict(row), "predictions": [asdict(p) for p in row.predictions]}
                for row in prediction.scaling(work, ranks, run["batch"], conditions, kind)
            ]
            for kind in ("strong", "weak")
        },
    }  # fmt: skip


def _finite(value: Any) -> Any:
    """JSON has no infinity: what is impossible takes null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show(prediction: dict[str, Any], columns: Sequence[str]) -> None:
    out = console()
    out.print(table("The model against what was measured", ["what", "measured", "model", "error", "measured by"],
                    [_point(p) for p in prediction["errors"]]))  # fmt: skip
    for note in prediction["notes"]:
        out.print(f"Note: {note}")
    image = "x".join(map(str, prediction["image"]))
    device = "one core of this machine" if prediction["device"] == CPU else KNOWN[prediction["device"]].name
    for kind, says in (("strong", "of all ranks together"), ("weak", "of each rank")):
        out.print()
        subject = f"{prediction['network']} on {image}, {prediction['batch']} samples {says}"
        title = f"Predicted, {kind} scaling: {subject}, on {device}"
        predicted = [_cells(row, i) for row in prediction[kind] for i in range(len(row["predictions"]))]
        heads = ["ranks", "strategy", *columns]
        cells = [[row[head] for head in heads] for row in predicted]
        out.print(
            table(f"{title}, {prediction['link']['name']}", heads, cells, numbers=True, texts={"strategy", "how"})
        )
        out.print(f"Choice: {prediction[kind][-1]['why']}")
    if prediction["hybrid_until_batch"] is not None:
        out.print()
        out.print(
            f"Hybrid parallelism sends fewer bytes than data parallelism while a group's batch is at most "
            f"{prediction['hybrid_until_batch']:,}."
        )


def _point(point: Mapping[str, Any]) -> list[str]:
    write = rows.time if point["unit"] == "s" else "{:.2f} times".format
    fitted = " (fitted)" if point["fitted"] else ""
    return [
        point["what"], write(point["measured"]), write(point["predicted"]), f"{100 * point['error']:+.0f} %{fitted}",
        point["source"],
    ]  # fmt: skip


def _cells(row: Mapping[str, Any], place: int) -> dict[str, str]:
    """The cells of a prediction, by the heads of their columns."""
    p, speedup = row["predictions"][place], row["speedups"][place]
    cells = {"ranks": f"{row['ranks']:,}", "strategy": p["strategy"] + (" *" if p["strategy"] == row["chosen"] else "")}
    if p["impossible"] is not None:
        return {**dict.fromkeys(COLUMNS, "-"), **cells, "how": f"impossible: {p['impossible']}"}
    fits = "" if p["fits"] else ", does not fit"
    times = {"computes": "compute", "idle": "idle", "waits": "exposed", "hidden": "hidden"}
    return {
        **cells, "step": rows.time(p["seconds"]), "speed-up": f"{speedup:.3g}",
        **{head: rows.time(p[key]) if p[key] else "-" for head, key in times.items()},
        "sends": rows.amount(p["sent"]), "memory": rows.amount(p["memory"]) + fits,
        "how": p["how"] + fits * ("memory" not in p["how"]),
    }  # fmt: skip
