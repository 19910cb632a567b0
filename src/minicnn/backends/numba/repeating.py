"""Gradients of activations that the passes of a normalisation's gradient make anew, each for itself.

Such a gradient is read by sums over the batch and, once these are there, by what makes the gradient of the images. An
array of its own would be written once and read twice. Activations that take an instruction or two are made again as
well, from the images that were normalised, which all passes read anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

from minicnn.backends.numba.grouping import PRODUCTS, member, sums_batch
from minicnn.backends.numba.lowering import Lowering
from minicnn.program.graph import Node, Value
from minicnn.program.passes import remove_dead_nodes
from minicnn.program.readers import Readers

_CHEAP = ("add", "subtract", "multiply", "relu", "relu6")  # what takes less time than a vector from memory
_WRITTEN = 2  # images that move when one is written: its lines are read before


def repeat_gradients(to: Lowering) -> None:
    """Rewrite a Program that has samples in the lanes, where fewer images then move through memory."""
    images = _Images(to)
    remade: dict[int, tuple[Value, _Pass]] = {}
    for value in {id(n.inputs[0]): n.inputs[0] for n in to.program.nodes if sums_batch(to, n)}.values():
        for reading in images.passes(value):
            remade |= {id(node): (value, reading) for node in reading.readers}

    def rule(node: Node) -> None:
        if id(node) in remade:
            value, reading = remade[id(node)]
            node.inputs = tuple(reading.remade(value) if v is value else v for v in node.inputs)

    if remade:
        to.program.replace(rule)
        remove_dead_nodes(to.program)
        to.mark()


class _Images:
    """Images of a Program: what makes them, and who reads them."""

    def __init__(self, to: Lowering) -> None:
        self._to, self._readers = to, Readers(to.program)
        self.order = {id(node): i for i, node in enumerate(to.program.nodes)}

    def of(self, node: Node) -> list[Value]:
        """Images that a node reads."""
        return [v for v in node.inputs if self._to.is_blocked(v)]

    def alone(self, image: Value) -> Node | None:
        """The node that makes an image element by element, if one node alone reads it."""
        return self._made_by(image) if self._readers.only(image) is not None else None

    def passes(self, value: Value) -> list[_Pass]:
        """The two passes that read a value, if fewer images move when each makes it anew; else none."""
        node, readers = self._made_by(value), self._readers.of(value)
        summing = [n for n in readers if self._summed(n)]
        others = [n for n in readers if n not in summing]
        if node is None or self._readers.is_result(value) or len(others) != 1 or not self._is_member(others[0]):
            return []
        if self._in_turn(summing):
            return []
        first, second = (_Pass(self, value, nodes) for nodes in (summing, others))
        known = first.images & second.images
        chain, cheap = self._made_of(node, known)
        made = {id(n.outputs[0]) for n in (*chain, *cheap)}
        read = {id(v) for n in chain for v in self.of(n)}
        stored = len(read - {id(n.outputs[0]) for n in chain}) + _WRITTEN + 2
        if self._ends_product(node):  # which then stores what it has in registers
            stored -= 1 + _WRITTEN
        if 2 * len(read - made - known) >= stored:
            return []
        first.nodes = second.nodes = sorted({id(n): n for n in (*cheap, *chain)}.values(), key=self._place)
        return [first, second]

    def _made_by(self, image: Value) -> Node | None:
        return image.node if image.node is not None and self._is_member(image.node) else None

    def _is_member(self, node: Node) -> bool:
        return member(self._to, node, blocked=True)

    def _place(self, node: Node) -> int:
        return self.order[id(node)]

    def _summed(self, node: Node) -> bool:
        """True if a node is a sum over the batch, or makes terms for one alone."""
        if sums_batch(self._to, node):
            return True
        after = self._readers.only(node.outputs[0]) if self._is_member(node) else None
        return after is not None and self._summed(after)

    def _in_turn(self, readers: list[Node]) -> bool:
        """True if one of the sums that read a value waits for another, as a variance does for its mean."""
        sums, waiting = set[int](), list[Value]()
        for node in readers:
            waiting += node.inputs
            while not sums_batch(self._to, node):
                (node,) = self._readers.of(node.outputs[0])
                waiting += node.inputs
            sums.add(id(node))
        while waiting:
            before = waiting.pop().node
            if before is not None and id(before) in sums:
                return True
            if before is not None and self.order[id(before)] > min(self.order[id(r)] for r in readers):
                waiting += before.inputs
        return False

    def _ends_product(self, node: Node) -> bool:
        """True if a node would run at the end of the product before it."""
        product = node.inputs[0].node
        before = product is not None and product.op.name in PRODUCTS and self._readers.only(node.inputs[0]) is node
        return before and node.op.name == "relu_gradient"

    def _made_of(self, node: Node, known: set[int]) -> tuple[list[Node], list[Node]]:
        """Nodes that make a value and nothing else, and cheap ones that make what they read of known images."""
        chain, cheap = [node], list[Node]()
        for image in self.of(node):
            before = self.alone(image)
            if before is not None:
                more = self._made_of(before, known)
                chain += more[0]
                cheap += more[1]
            else:
                cheap += self._cheap(image, known) or []
        return chain, cheap

    def _cheap(self, image: Value, known: set[int]) -> list[Node] | None:
        """Cheap nodes that make an image of known ones, if there are such."""
        if id(image) in known:
            return []
        node = self._made_by(image)
        if node is None or node.op.name not in _CHEAP:
            return None
        nodes = [node]
        for each in self.of(node):
            before = self._cheap(each, known)
            if before is None:
                return None
            nodes += before
        return nodes


class _Pass:
    """Nodes that go through images together.

    Attributes:
        readers: Those that read a value that is to be made anew.
        images: Ids of what else they read.
        nodes: What makes the value, in order.
    """

    def __init__(self, images: _Images, value: Value, readers: list[Node]) -> None:
        self.readers, self.images, self.nodes = readers, set[int](), list[Node]()
        self._there: dict[object, Value] = {}  # what the pass makes before it reads the value, by what that is
        self._remade: Value | None = None
        first = min(images.order[id(node)] for node in readers)
        waiting = [v for node in readers for v in images.of(node) if v is not value]
        while waiting:
            image = waiting.pop()
            producer = images.alone(image)
            if producer is None:
                self.images.add(id(image))
                continue
            waiting += [v for v in images.of(producer) if v is not value]
            if images.order[id(producer)] < first:
                self._there[_identity(producer, {})] = image

    def remade(self, value: Value) -> Value:
        """The value, made anew at the first call."""
        if self._remade is None:
            new: dict[int, Value] = {}
            for node in self.nodes:
                result = self._there.get(_identity(node, new))
                if result is None:
                    inputs = [new.get(id(v), v) for v in node.inputs]
                    (result,) = value.program.emit(node.op, inputs, node.attrs).outputs
                new[id(node.outputs[0])] = result
            self._remade = new[id(value)]
        return self._remade


def _identity(node: Node, new: Mapping[int, Value]) -> object:
    """A node's operation, and the values that it reads."""
    return node.op.name, tuple(id(new.get(id(v), v)) for v in node.inputs), repr(sorted(node.attrs.items()))
