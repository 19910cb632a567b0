"""Building a Program: values, nodes, constants, scopes, and the errors on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.ops import Primitive, primitive
from minicnn.program import Program, Spec, gradients
from support.gradcheck import run_checked


def test_a_program_is_a_flat_list_of_nodes() -> None:
    program = Program("two layers")
    x, w = program.input("x", [4, 3]), program.input("w", [3, 2], kind="parameter")
    y = ops.relu(x @ w)
    program.outputs["y"] = y
    assert [n.op.name for n in program.nodes] == ["matmul", "relu"]
    assert [repr(n) for n in program.nodes] == ["v1 = matmul(x, w)", "v2 = relu(v1)"]
    assert repr(y) == "<activation v2: float32[4,2]>"
    assert repr(program) == "<Program 'two layers': 2 inputs, 2 nodes>"
    assert (y.shape, y.dtype, y.ndim, y.size, y.nbytes) == ((4, 2), "float32", 2, 8, 32)
    assert y.node is program.nodes[1]
    assert program.results == [y]
    assert program.value("w") is w
    assert program.flops == 2 * 4 * 3 * 2 + 8
    assert program.bytes_moved == 4 * (12 + 6 + 8) + 4 * (8 + 8)


def test_input_names_are_unique() -> None:
    program = Program()
    program.input("x", (1,))
    with pytest.raises(ValueError, match=r"Input names of a Program are unique\. Received: 'x' twice"):
        program.input("x", (2,))


def test_unknown_input_is_named_with_those_that_exist() -> None:
    program = Program()
    program.input("x", (1,))
    with pytest.raises(KeyError, match=r"Received: 'y'\. Inputs: x"):
        program.value("y")


def test_values_of_two_programs_do_not_mix() -> None:
    one, two = Program("one"), Program("two")
    x, y = one.input("x", (2,)), two.input("y", (2,))
    with pytest.raises(ValueError, match=r"belong to one Program\. Received: add in 'one' with <input y.*of 'two'"):
        x + y
    assert one.nodes == two.nodes == []


def test_a_value_has_no_truth_value_and_no_iterator() -> None:
    x = Program().input("x", (3,))
    with pytest.raises(TypeError, match=r"not known while the Program is traced.*Use ops\.where"):
        bool(x)
    with pytest.raises(TypeError, match="no truth value"):
        assert ops.greater(x, 0)
    with pytest.raises(TypeError, match="not a sequence: index it"):
        list(x)
    with pytest.raises(TypeError, match="not a sequence"):
        _, _ = x


def test_primitives_need_a_value() -> None:
    with pytest.raises(TypeError, match=r"at least one argument is a Value\. Received: ndarray.*relu\.reference"):
        ops.relu(np.ones(3))


def test_wrong_arguments() -> None:
    x = Program().input("x", (2, 3))
    with pytest.raises(TypeError, match=r"relu takes 1 arrays \(x\)\. Received: 2"):
        ops.relu(x, x)
    with pytest.raises(TypeError, match=r"reshape takes the keyword arguments \['shape'\].*missing: \['shape'\]"):
        ops.reshape(x)


@pytest.mark.parametrize(
    ("data", "dtype", "name", "spec"),
    [
        (2.0, "float32", "2.0", Spec((), "float32")),
        (0.1, "float32", "0.1", Spec((), "float32")),
        (3, "int32", "3", Spec((), "int32")),
        (True, None, "True", Spec((), "bool")),
        (np.zeros((2, 3)), None, "c1", Spec((2, 3), "float64")),
        (1.0, "bfloat16", "1.0", Spec((), "bfloat16")),
    ],
)
def test_constants(data: Any, dtype: str | None, name: str, spec: Spec) -> None:
    value = Program().constant(data, dtype)
    assert (value.name, value.spec, value.kind) == (name, spec, "constant")


def test_a_constant_is_a_copy() -> None:
    array = np.ones(3)
    value = Program().constant(array)
    array[0] = 7  # still writeable, and not seen by the Program
    np.testing.assert_array_equal(value.data, [1, 1, 1])
    assert value.data is not None
    assert not value.data.flags.writeable


def test_only_constants_that_are_read_are_listed() -> None:
    program = Program()
    x = program.input("x", (3,))
    unused, kept = program.constant(np.zeros(3, "float32")), program.constant(np.ones(3, "float32"))
    program.outputs["y"] = x + kept
    assert program.constants == [kept]
    program.outputs["c"] = unused
    assert program.constants == [kept, unused]


def test_scopes_and_phases() -> None:
    program = Program()
    x = program.input("x", (3,))
    with program.scope("model"), program.scope("conv"):
        y = ops.square(x)
    ops.relu(x)
    loss = ops.sum(y)
    (dx,) = gradients(program, loss, [x])
    with program.scope("sgd", "update"):
        new = x - dx
    scopes = {(n.op.name, n.scope, n.phase) for n in program.nodes}
    assert ("square", "model/conv", "forward") in scopes
    assert ("relu", "", "forward") in scopes
    assert ("subtract", "sgd", "update") in scopes
    # The backward nodes of a layer carry its scope.
    assert {s for _, s, p in scopes if p == "backward"} == {"model/conv", ""}
    assert (y.kind, dx.kind, new.kind) == ("activation", "gradient", "update")
    # An error inside leaves the scope.
    with pytest.raises(ZeroDivisionError), program.scope("broken"):
        _ = 1 / 0
    assert ops.relu(x).node.scope == ""


def test_spec_text_and_sizes() -> None:
    spec = Spec((2, 3), "bfloat16")
    assert str(spec) == "bfloat16[2,3]"
    assert (spec.ndim, spec.size, spec.nbytes) == (2, 6, 12)
    assert Spec(()).nbytes == 4
    assert Spec((0, 5)).size == 0


def test_user_defined_primitive(registry: None) -> None:
    """Reference, gradient rule, shape rule and cost: then it is used, differentiated and counted like any other."""

    @primitive(elementwise=True)
    def hardswish(x: Any, *, width: float = 6.0, xp: Any) -> Any:
        """X * min(max(x + width / 2, 0), width) / width (arXiv:1905.02244)."""
        zero = xp.zeros_like(x)
        return x * xp.minimum(xp.maximum(x + width / 2, zero), zero + width) / width

    @hardswish.shape
    def _(x: Spec, *, width: float) -> Spec:
        return x

    @hardswish.gradient
    def _(node: Any, dy: Any) -> Any:
        (x,), w = node.inputs, node.attrs["width"]
        slope = (x * 2.0 + w / 2) / w
        inside = ops.where(ops.less(x, w / 2), slope, 1.0)
        return dy * ops.where(ops.greater(x, -w / 2), inside, 0.0)

    @hardswish.cost
    def _(node: Any) -> int:
        return 5 * int(node.outputs[0].size)

    from support.gradcheck import check_gradients

    assert isinstance(hardswish, Primitive)
    assert ops.REGISTRY["hardswish"] is hardswish
    assert repr(hardswish) == "<primitive hardswish>"
    x = np.asarray([-4.0, -1.0, 0.5, 2.0, 5.0])
    check_gradients(hardswish, x)
    check_gradients(hardswish, x, width=5.0)
    program = Program()
    program.outputs["y"] = hardswish(program.input("x", x.shape, "float64"))
    np.testing.assert_allclose(run_checked(program, {"x": x})["y"], x * np.clip(x + 3, 0, 6) / 6)
    assert program.flops == 25
    assert "hardswish(x)" in str(program)


def test_user_defined_primitive_with_several_results_and_a_whole_cost(registry: None) -> None:
    @primitive
    def split_sign(x: Any, *, xp: Any) -> Any:
        zero = xp.zeros_like(x)
        return xp.maximum(x, zero), xp.minimum(x, zero)

    split_sign.shape(lambda x: (x, x))
    split_sign.cost(lambda node: ops.Cost(flops=1, bytes=2, workspace=3))

    @split_sign.gradient
    def _(node: Any, dp: Any, dn: Any) -> Any:
        positive = ops.greater(node.inputs[0], 0)
        return [ops.where(positive, 0.0 if dp is None else dp, 0.0 if dn is None else dn)]

    from support.gradcheck import check_gradients

    x = np.asarray([-1.0, 2.0])
    check_gradients(split_sign, x)
    check_gradients(lambda v: split_sign(v)[1], x)  # the gradient of the unused result is None
    value = Program().input("x", (2,))
    positive, negative = split_sign(value)
    assert positive.node is negative.node
    assert (positive.node.cost.flops, positive.node.cost.bytes, positive.node.cost.workspace) == (1, 2, 3)


def test_user_composition_needs_no_backward() -> None:
    """What a layer's `call` does: compose primitives; the gradient follows."""
    from support.gradcheck import check_gradients

    def attention_pool(x: Any, w: Any) -> Any:
        n, h, wd, c = x.shape
        scores = ops.softmax(ops.reshape(x, shape=(n * h * wd, c)) @ w, axis=0)
        return ops.sum(ops.reshape(x, shape=(n * h * wd, c)) * scores, axes=0)

    rng = np.random.default_rng(0)
    check_gradients(attention_pool, rng.standard_normal((2, 2, 3, 4)), rng.standard_normal((4, 1)))


def test_a_primitive_needs_a_shape_rule(registry: None) -> None:
    @primitive
    def shapeless(x: Any, *, xp: Any) -> Any:
        return x + 1

    with pytest.raises(TypeError, match=r"Every primitive has a shape rule.*Add @shapeless\.shape"):
        shapeless(Program().input("x", (1,)))


def test_primitive_names_are_unique_but_a_module_may_redefine_its_own(registry: None) -> None:
    def define(module: str) -> None:
        def twice(x: Any, *, xp: Any) -> Any:
            return x * 2

        twice.__module__ = module
        primitive(twice)

    define("notebook")
    define("notebook")
    with pytest.raises(ValueError, match=r"Primitive names are unique\. Received: 'twice' of other, which notebook"):
        define("other")
