"""Studies, and how one is carried out: measure what is not stored yet, then present the results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from fnmatch import fnmatch
from math import isfinite
from typing import Any

from minicnn.measure.candidates import is_name, on_gpu
from minicnn.measure.page import Page
from minicnn.measure.store import NOT_MEASURED, Record, ResultStore, plain
from minicnn.measure.utilisation import Others, disturbance

Results = Mapping[str, Any]
PEER_NAMES = {"torch.nn": "PyTorch modules", "torch.nn-loader": "PyTorch DataLoader", "jax.lax": "plain JAX"}
SETTING = "setting"  # name of the record that says how a study was carried out


@dataclass(frozen=True)
class Setting:
    """Settings with which a study is carried out.

    Attributes:
        sizes: The study's own sizes.
        candidates: Names of those that can run here, in order.
        absent: The others, with the reason and the remedy.
        data: Names of data sets.
        data_dir: Their folder, if named.
        quick: Whether it is the quick form.
        clocks: State of the clocks of each GPU at the start, as nvidia-smi has it.
        only: Backends and peers that were asked for; empty for all that are found.
    """

    sizes: Any
    candidates: tuple[str, ...]
    absent: Mapping[str, str]
    data: tuple[str, ...]
    data_dir: str | None = None
    quick: bool = False
    clocks: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyRun:
    """A study as it was carried out on one machine.

    Attributes:
        setting: How.
        results: What was measured, by name; what was not is not there.
        machine: Machine and versions, as plain data.
        form: What tells its figures from those of another run on the same page, such as "quick form": it stands
            wherever the machine is named.
        replaced: Results that another run of the same machine shows instead, for what depends on them.
        others: Share of the cores' time that other programs took during each measurement, as far as it is known.
    """

    setting: Setting
    results: Results
    machine: Mapping[str, Any]
    form: str = ""
    replaced: Results = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def cpu(self) -> str:
        """The CPU in a word or two: how many cores it has."""
        return self._formed(f"{self.machine['cores']} cores")

    @property
    def gpu(self) -> str | None:
        """The GPU in a word or two, without its maker and its memory; None without one."""
        devices = (device for name, device in self.machine["devices"].items() if "cuda" in name)
        return next((self._formed(re.sub(r"^NVIDIA | \d+GB\b.*", "", device)) for device in devices), None)

    def _formed(self, name: str) -> str:
        return f"{name} ({self.form})" if self.form else name

    @property
    def computer(self) -> tuple[str, str | None]:
        """Facts that runs of one machine have in common, as far as a page names them."""
        plain_run = replace(self, form="")
        return plain_run.cpu, plain_run.gpu

    def found(self, name: str) -> Any:
        """The result of a measurement, whether this run shows it or another; None if it was not made in it."""
        return self.results.get(name, self.replaced.get(name))

    def where(self, candidate: str) -> str:
        """The device of a candidate, in a word or two."""
        return (self.gpu or "GPU") if on_gpu(candidate.partition(" / ")[0]) else self.cpu

    def label(self, candidate: str) -> str:
        """A candidate and what it ran on, for rows and marks."""
        name, slash, how = candidate.partition(" / ")
        library = name.partition(":")[0]
        return f"{PEER_NAMES.get(library, library)}, {self.where(candidate)}{slash}{how}"

    def name(self, candidate: str) -> str:
        """A candidate without what it ran on, for marks of one machine."""
        return self.label(candidate).replace(f", {self.where(candidate)}", "", 1)

    def lacks(self, study: Study) -> list[str]:
        """Names of the study's measurements that were not made in it."""
        return [m.name for m in study.measurements(self.setting) if m.name not in self.results]


@dataclass(frozen=True)
class Measurement:
    """Something to measure and to keep: what must come out of one run, as small as that allows.

    Attributes:
        name: Name, unique in the study.
        inputs: All that the result depends on beside machine and versions; plain data.
        run: Measures; returns plain data.
    """

    name: str
    inputs: Mapping[str, Any]
    run: Callable[[], Any]


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        title: What it is called.
        question: What it asks.
        source: Where it was published before.
        full: Sizes of the full form, a frozen dataclass: see `changed`.
        quick: Sizes that take minutes on two cores.
        data: Data sets that it is about.
        measurements: What there is to measure for a setting, in order.
        present: Puts answer, figures, claims and tables on a page, from the results of one or several machines alone.
        others: Other data sets that it can work with.
        peers: Peers that take part: see `minicnn.measure.candidates.PEERS`.
        hybrids: Whether hybrids of two backends can take part: see `minicnn.measure.hybrid`.
        check: Raises a ValueError for sizes that cannot be measured together, or with its networks.
    """

    title: str
    question: str
    source: str
    full: Any
    quick: Any
    data: tuple[str, ...]
    measurements: Callable[[Setting], Iterator[Measurement]]
    present: Callable[[Page, Sequence[StudyRun]], None]
    others: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    hybrids: bool = False
    check: Callable[[Any], None] = lambda sizes: None


def changed(sizes: Any, changes: Mapping[str, str]) -> Any:
    """Sizes with some fields set from text; tuples, of different values, from text with commas.

    Numbers are finite and not below the "least" of the field's metadata: if that is not given, 0 where the default is
    0, has a 0 or is no whole number, else 1. Texts are among the "known" of the metadata, if given; an empty text is a
    tuple of none of them.

    Raises:
        ValueError: If there is no such field, or the text is not of its kind.
    """
    known = {f.name: f for f in fields(sizes)}
    for name in changes:
        if name not in known:
            raise ValueError(f"A size of this study is one of {', '.join(known)}. Received: {name!r}.")
    return replace(sizes, **{name: _size(known[name], getattr(sizes, name), text) for name, text in changes.items()})


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _size(size: Field[Any], usual: Any, text: str) -> Any:
    """The value of a size from text."""
    several = isinstance(usual, tuple)
    kind = type(_several(usual)[0])
    if kind is str:
        known = size.metadata.get("known")
        wanted = f"{'nothing, ' * several}one of {', '.join(known)}" if known else "a text"

        def allowed(value: Any) -> bool:
            return not known or value in known or (several and not value)
    else:
        least = size.metadata.get("least", 0 if kind is float or 0 in _several(size.default) else 1)
        wanted = f"a {'whole ' if kind is int else ''}number that is at least {least}"

        def allowed(value: Any) -> bool:
            return isfinite(value) and value >= least

    try:
        values = tuple(kind(part) for part in (text.split(",") if several else [text]))
        good = all(map(allowed, values)) and len(set(values)) == len(values)
    except ValueError:
        good = False
    if not good:
        wanted += ", or several different ones with commas between them" if several else ""
        raise ValueError(f"{size.name} is like {usual!r}. Received: {text!r:.80}. Give {wanted}.")
    return values if several else values[0]


def measure(
    study: Study, setting: Setting, store: ResultStore, say: Callable[[str], None], *, remeasure: bool = False,
    parts: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure what the store does not hold yet; each result is stored as soon as it is measured.

    Args:
        study: The study.
        setting: How it is carried out.
        store: Where results are kept.
        say: Told what goes on, a line at a time.
        remeasure: Measure everything again, stored or not.
        parts: Names of measurements, or patterns such as "sweep-*"; empty for all.

    Raises:
        ValueError: If the store holds the study in other sizes, or results of another machine, as nothing would tell
            them apart; or if the study has no measurement of such a name.
    """
    wanted = list(study.measurements(setting))
    _check_names(wanted)
    _check_machine(store, store.stamp, wanted)
    _check_sizes(store, setting.sizes, wanted)
    wanted = _chosen(wanted, parts)
    for number, measurement in enumerate(wanted, start=1):
        stored = "measured anew" if remeasure else store.find(measurement.name, measurement.inputs)
        place = f"{number}/{len(wanted)} {measurement.name}"
        if isinstance(stored, Record):
            store.keep(SETTING, {}, asdict(setting))
            say(f"{place}: kept")
            continue
        start = time.perf_counter()
        say(f"{place} ... ({stored})")
        others = Others()
        result = measurement.run()
        busy = others.busy()
        store.keep(SETTING, {}, asdict(setting))  # only now: what cannot be measured leaves nothing behind
        store.keep(measurement.name, measurement.inputs, result, busy)
        say("; ".join(filter(None, (f"{place}: {time.perf_counter() - start:.0f} s", disturbance(busy)))))


def _chosen(wanted: Sequence[Measurement], parts: Sequence[str]) -> list[Measurement]:
    """The measurements that some names or patterns are of; all, if there are none."""
    for part in parts:
        if not any(fnmatch(m.name, part) for m in wanted):
            names = ", ".join(m.name for m in wanted)
            raise ValueError(f"A part of the study is one of {names}, or a pattern of them. Received: {part!r}.")
    return [m for m in wanted if not parts or any(fnmatch(m.name, part) for part in parts)]


def _check_machine(store: ResultStore, stamp: Mapping[str, Any], every: Sequence[Measurement]) -> None:
    """Refuse results of another machine than that of a stamp, under whose name a page would show them."""
    here = _computer(stamp)
    for measurement in every:
        record = store.read(measurement.name)
        if isinstance(record, Record) and (other := _computer(record.stamp)) != here:
            raise ValueError(
                f"A folder holds the results of one machine. Received: {measurement.name}, measured on {other}, for "
                f"{here} in {store.folder}. Name another folder with --out, or remove that one."
            )


def _computer(stamp: Mapping[str, Any]) -> str:
    """The machine, in words, as a page names it."""
    gpus = {str(device) for name, device in stamp.get("devices", {}).items() if "cuda" in name}
    return ", ".join([str(stamp.get("cpu")), f"{stamp.get('cores')} cores", *sorted(gpus)])


def _check_sizes(store: ResultStore, sizes: Any, every: Sequence[Measurement]) -> None:
    """Refuse to put measurements of other sizes into a folder: its page would show them as one study."""
    record = store.read(SETTING)
    kept = record.result if isinstance(record, Record) else None
    if not isinstance(kept, dict) or kept.get("sizes") == plain(asdict(sizes)):
        return
    for measurement in every:
        stored = store.read(measurement.name)
        inputs = plain(measurement.inputs)
        if isinstance(stored, Record) and {**stored.inputs, "candidates": None} != {**inputs, "candidates": None}:
            other = ", ".join(k for k in {**stored.inputs, **inputs} if stored.inputs.get(k) != inputs.get(k))
            raise ValueError(
                f"A folder holds a study in one set of sizes. Received: {measurement.name} with other {other} than in "
                f"{store.folder}. Name another folder with --out, or remove that one."
            )


def recall_all(study: Study, stores: Sequence[ResultStore]) -> list[StudyRun]:
    """Results of a study in several stores, for one page.

    Of what was measured on a machine more than once, the first store's is shown. A run in the quick form, or beside
    another one of its machine, says so wherever it is named.

    Raises:
        ValueError: If one holds none, or one that cannot be read.
    """
    runs: list[StudyRun] = []
    for run in [recall(study, store) for store in stores]:
        same = [other for other in runs if other.computer == run.computer]
        shown = {name: result for name, result in run.results.items() if not any(name in r.results for r in same)}
        form = "quick form" if run.setting.quick else "earlier sizes" if same else ""
        if shown:
            replaced = {name: result for name, result in run.results.items() if name not in shown}
            runs.append(replace(run, results=shown, replaced=replaced, form=form if len(stores) > 1 else ""))
    return runs


def recall(study: Study, store: ResultStore) -> StudyRun:
    """Results of a study in one store; a measurement that it does not hold is left out.

    Raises:
        ValueError: If it holds none, one that cannot be read, or one of another machine than the study's setting.
    """
    record = store.read(SETTING)
    if isinstance(record, str):
        raise _incomplete(record)
    setting = _setting(study, _tuples(record.result))
    every = list(study.measurements(setting))
    _check_machine(store, record.stamp, every)
    results, others = {}, {}
    for measurement in every:
        stored = store.read(measurement.name)
        if isinstance(stored, Record):
            results[measurement.name] = stored.result
            if stored.others is not None:
                others[measurement.name] = stored.others
        elif stored != NOT_MEASURED:
            raise _incomplete(stored)
    if not results:
        raise _incomplete(NOT_MEASURED)
    return StudyRun(setting, results, record.stamp, others=others)


def _setting(study: Study, kept: Any) -> Setting:
    """The setting that was stored, after a check of all that becomes a part of names or pages."""

    def several(value: Any, rule: Callable[[Any], bool]) -> bool:
        return isinstance(value, tuple) and all(map(rule, value))

    def text(value: Any) -> bool:
        return isinstance(value, str)

    rules: dict[str, Callable[[Any], bool]] = {
        "sizes": lambda v: isinstance(v, dict) and v.keys() == vars(study.full).keys()
        and all(_alike(v[k], old) for k, old in vars(study.full).items()),
        "candidates": lambda v: several(v, is_name),
        "absent": lambda v: isinstance(v, dict) and all(is_name(k) and text(why) for k, why in v.items()),
        "data": lambda v: several(v, lambda name: name in (*study.data, *study.others)),
        "data_dir": lambda v: v is None or text(v),
        "quick": lambda v: isinstance(v, bool),
        "clocks": lambda v: several(v, text),
        "only": lambda v: several(v, is_name),
    }  # fmt: skip
    if not isinstance(kept, dict) or kept.keys() != rules.keys():
        received = ", ".join(map(str, kept)) if isinstance(kept, dict) else type(kept).__name__
        raise ValueError(f"A stored setting has {', '.join(rules)}. Received: {received:.80}. Measure the study again.")
    for name, rule in rules.items():
        if not rule(kept[name]):
            raise ValueError(
                f"A stored setting names data sets, candidates and sizes that the study knows. Received: {name} = "
                f"{kept[name]!r:.80}. Measure the study again."
            )
    return Setting(**{**kept, "sizes": type(study.full)(**kept["sizes"])})


def _alike(value: Any, usual: Any) -> bool:
    """True if a size is of the kind of the usual one."""
    if isinstance(usual, tuple):
        return isinstance(value, tuple) and all(_alike(v, usual[0] if usual else v) for v in value)
    return type(value) is type(usual) or (isinstance(usual, float) and type(value) is int)


def _incomplete(reason: str) -> ValueError:
    message = f"Stored results are there, and can be read. Received: {reason}. Run the study without --stored first."
    return ValueError(message)


def _tuples(value: Any) -> Any:
    """JSON with tuples for its lists."""
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check_names(measurements: Sequence[Measurement]) -> None:
    names = [SETTING, *(m.name for m in measurements)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"Measurements of a study have different names. Received twice: {', '.join(twice)}. Rename one."
        )
