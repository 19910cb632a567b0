"""Networks between ranks, and the seconds that collectives take on them: latency and bandwidth.

The times are those of R. Hockney's model, in which a message of n bytes takes a + n / b seconds; the collectives are
those that R. Thakur, R. Rabenseifner and W. Gropp describe (Optimization of Collective Communication Operations in
MPICH, 2005), and the sum in a fixed tree of `minicnn.ops.collectives.all_reduce`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from minicnn.ops.groups import Group

ALGORITHMS = ("fixed", "ring", "tree")
_KINDS: dict[str, type[float] | type[int] | type[str]] = {
    "latency": float, "bandwidth": float, "ranks_per_host": int, "links_per_host": int, "oversubscription": float,
    "within": str, "most_ranks": int, "peer_latency": float, "copy_latency": float,
}  # fmt: skip


@dataclass(frozen=True)
class Interconnect:
    """Network between ranks. Those of a host have consecutive numbers.

    Attributes:
        name: Name.
        latency: Seconds that a message of no bytes takes.
        bandwidth: Bytes a second that a link moves in each direction.
        ranks_per_host: Ranks that share the links of a host.
        links_per_host: Links of a host.
        oversubscription: By how many times the links of all hosts together are faster than what joins them.
        within: Name of the network between the ranks of a host; if None, they are as far from each other as from
            others, without sharing.
        most_ranks: The most ranks that it connects; 0 for any number.
        peer_latency: Seconds of a sum of few bytes by kernels that write into each other's memory; 0 if they cannot. In
            shares, before and after which ranks meet, it takes three times as long, beside the copies.
        copy_latency: Seconds of a copy of few bytes from or to the memory of another.
        about: What it is, and where the figures are from.
    """

    name: str
    latency: float
    bandwidth: float
    ranks_per_host: int = 1
    links_per_host: int = 1
    oversubscription: float = 1.0
    within: str | None = None
    most_ranks: int = 0
    peer_latency: float = 0.0
    copy_latency: float = 0.0
    about: str = ""

    def __post_init__(self) -> None:
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("name", "within", "about")}
        least = {"latency": 0.0, "most_ranks": 0, "peer_latency": 0.0, "copy_latency": 0.0, "bandwidth": 1e-300}
        for name, value in numbers.items():
            if not least.get(name, 1) <= value < math.inf:
                bound = "above 0" if name == "bandwidth" else f"of at least {least.get(name, 1):g}"
                raise ValueError(f"{name} of a network is a finite number {bound}. Received: {name}={value!r}.")

    def link(self, span: int, sharing: int = 1) -> tuple[float, float]:
        """Latency, and bytes a second, of the slowest step from neighbour to neighbour among some ranks.

        Args:
            span: From the first of the ranks to the last so many are counted, whether they take part or not.
            sharing: Collectives that go on at the same time across the links of a host.
        """
        near = known()[self.within] if self.within else replace(self, ranks_per_host=1, links_per_host=1)
        if span <= self.ranks_per_host:
            return near.latency, near.bandwidth
        host = self.bandwidth * self.links_per_host / self.oversubscription / sharing
        return max(near.latency, self.latency), min(near.bandwidth, host)

    def spread(self, sent: float, ranks: int, stride: int = 1) -> float:
        """Seconds in which each rank sends so many bytes, the same number to every other one, without latencies.

        Arguments as for `all_reduce`.
        """
        here = min(max(1, self.ranks_per_host // stride), ranks)
        # Ranks of a host share its links to the others, which are the bottleneck unless the host's own network is.
        far = (ranks - here) / max(1, ranks - 1)
        host = self.bandwidth * self.links_per_host / self.oversubscription / min(stride, self.ranks_per_host)
        return max(sent * (1 - far) / self.link(1)[1], here * sent * far / host)

    # Collectives --------------------------------------------------------------------------------

    def all_reduce(
        self, nbytes: float, ranks: int, algorithm: str = "ring", *, sums: int = 1, stride: int = 1
    ) -> float:
        """Seconds of an all-reduce.

        Args:
            nbytes: Bytes of the sum.
            ranks: Ranks that take part.
            algorithm: "ring", of 2 (R - 1) messages of a share of the bytes; "tree", of 2 log2 R messages of all bytes;
                or "fixed", in which each rank gets all others' sums of its share, finishes the fixed tree, and all
                gather the results.
            sums: With "fixed": sums that each rank gives, of shards that are not a whole part of the tree.
            stride: Every so many-th rank takes part, and those between do the same with each other, at the same time.
        """
        if ranks == 1 or not nbytes:
            return 0.0
        latency, bandwidth = self.link(ranks * stride, min(stride, self.ranks_per_host))
        steps = 2 * (ranks - 1) * latency
        if algorithm == "tree":
            # Up and down again, the whole array in each round: few latencies, many bytes.
            seconds = 2 * math.ceil(math.log2(ranks)) * (latency + nbytes / bandwidth)
        elif algorithm == "ring":
            seconds = steps + sent(nbytes, ranks) / bandwidth
        else:
            seconds = steps + self.spread(sent(nbytes, ranks, sums), ranks, stride)
        here = self.within is not None and ranks * stride <= self.ranks_per_host
        return min(seconds, (known()[str(self.within)] if here else self).in_peers(nbytes, ranks))

    def in_peers(self, nbytes: float, ranks: int) -> float:
        """Seconds of a sum by kernels that write into each other's memory: all at once, or in shares."""
        return min(self.at_once(nbytes, ranks), self.in_shares(nbytes, ranks))

    def at_once(self, nbytes: float, ranks: int) -> float:
        """Seconds of a sum for which each rank's kernel writes all bytes into the memory of every other, and adds."""
        # Each four bytes come with as many that say which sum they are of.
        return self.peer_latency + 2 * (ranks - 1) * nbytes / self.bandwidth if self.peer_latency else math.inf

    def in_shares(self, nbytes: float, ranks: int) -> float:
        """Seconds of a sum for which each rank copies its share of every other's array, and its sum to every other.

        Ranks meet before and after it.
        """
        latency = 3 * self.peer_latency + 2 * (ranks - 1) * self.copy_latency
        return latency + sent(nbytes, ranks) / self.bandwidth if self.peer_latency else math.inf

    def all_gather(self, nbytes: float, ranks: int) -> float:
        """Seconds in which each of some consecutive ranks gets `nbytes`, of which it has its share; in a ring.

        A reduce-scatter takes as long.
        """
        if ranks == 1:
            return 0.0
        latency, bandwidth = self.link(ranks)
        return (ranks - 1) * (latency + nbytes / ranks / bandwidth)


def sent(nbytes: float, ranks: int, sums: int = 1, algorithm: str = "ring") -> float:
    """Bytes that a rank sends in an all-reduce, at most.

    Args:
        nbytes: Bytes of the sum.
        ranks: Ranks that take part.
        sums: In the fixed tree: sums that the rank gives.
        algorithm: See `Interconnect.all_reduce`.
    """
    if algorithm == "tree":
        return nbytes * math.ceil(math.log2(ranks))
    # A rank sends each of its branches' sums apart, and gets one result.
    return (1 + sums) * nbytes * (ranks - 1) / ranks


def sums_of(shards: int, ranks: int) -> int:
    """The most sums that a rank gives in the fixed tree: 1 if each rank's shards are a whole part of it."""
    return max(len(Group(shards, rank, ranks).spans()) for rank in range(ranks))


@cache
def known() -> Mapping[str, Interconnect]:
    """The networks that have names."""
    text = files("minicnn.distribution.prediction").joinpath("networks.json").read_text("utf-8")
    return MappingProxyType({name: Interconnect(name, **facts) for name, facts in json.loads(text).items()})


def interconnect(text: str) -> Interconnect:
    """A network by name, changed or described by numbers.

    Args:
        text: A name such as "infiniband"; attributes, such as "latency=50e-6,bandwidth=1.25e8"; or both, such as
            "infiniband,ranks_per_host=8,within=nvlink".

    Raises:
        ValueError: If there is no such network or attribute, or a number is out of range.

    Example:
        >>> interconnect("ethernet-1g,ranks_per_host=4").ranks_per_host
        4
    """
    first, *rest = (part.strip() for part in text.split(","))
    settings = rest if "=" not in first else [first, *rest]
    if "=" not in first and first not in known():
        raise ValueError(f"A network is one of {', '.join(known())}, or latency=S,bandwidth=B. Received: {first!r}.")
    figures: dict[str, float | int | str] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        try:
            if not sign or name not in _KINDS or (name == "within" and value not in known()):
                raise ValueError
            figures[name] = _KINDS[name](value)
        except ValueError:
            raise ValueError(
                f"Networks are described by {', '.join(f'{k}=...' for k in _KINDS)}; within is one of "
                f"{', '.join(known())}. Received: {setting!r}."
            ) from None
    if "=" not in first:
        base = known()[first]
        return replace(base, **figures, name=text) if figures else base  # type: ignore[arg-type]
    missing = {"latency", "bandwidth"} - figures.keys()
    if missing:
        raise ValueError(
            f"A network without a name has latency (seconds) and bandwidth (bytes a second). Received: {text!r}, "
            f"without {', '.join(sorted(missing))}. Add it, or begin with one of {', '.join(known())}."
        )
    return Interconnect(text, **figures)  # type: ignore[arg-type]
