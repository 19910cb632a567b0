"""Who takes part in a study."""

from __future__ import annotations

import pytest

from minicnn import backends
from minicnn.measure.candidates import Field, backend_of, find, is_name, names, on_gpu

FIELD = Field(
    ("numpy", "array_api_strict", "torch:cpu", "jax:cpu", "torch.nn:cpu", "torch.nn-loader:cpu"),
    {"cupy": "no GPU", "torch:cuda": "no CUDA", "torch.nn:cuda": "no CUDA"},
    {},
)


def test_every_backend_and_device_is_a_possible_candidate() -> None:
    found = names()
    assert found[0] == "numpy"
    assert {name.partition(":")[0] for name in found} >= set(backends.names())
    assert {"torch:mps", "jax:gpu", "torch.nn:cuda", "torch.nn-loader:cpu", "jax.lax:cpu"} <= set(found)


@pytest.mark.parametrize(
    ("only", "peers", "present", "absent"),
    [
        (None, ("torch.nn",), ("numpy", "torch:cpu", "jax:cpu", "torch.nn:cpu"),
         ["cupy", "torch:cuda", "torch.nn:cuda"]),
        (None, (), ("numpy", "torch:cpu", "jax:cpu"), ["cupy", "torch:cuda"]),
        (["torch"], ("torch.nn",), ("torch:cpu", "torch.nn:cpu"), ["torch:cuda", "torch.nn:cuda"]),
        (["torch:cpu", "cupy"], ("torch.nn", "torch.nn-loader"), ("torch:cpu", "torch.nn:cpu", "torch.nn-loader:cpu"),
         ["cupy"]),
        (["array_api_strict"], (), ("array_api_strict",), []),
    ],
)  # fmt: skip
def test_a_study_gets_those_that_were_asked_for(
    only: list[str] | None, peers: tuple[str, ...], present: tuple[str, ...], absent: list[str]
) -> None:
    field = FIELD.of(only, peers)
    assert field.present == present
    assert list(field.absent) == absent


def test_hybrids_take_part_where_both_backends_are_there() -> None:
    asked = ["numpy", "torch:cpu+numpy", "cupy+numpy", "torch+numpy"]
    found = FIELD.of(asked, (), hybrids=True)
    assert found.present == ("numpy", "torch:cpu+numpy")
    assert found.absent["cupy+numpy"] == "no GPU"
    assert "each with its device" in found.absent["torch+numpy"]
    other = FIELD.of(asked, ())
    assert other.present == ("numpy",)
    assert other.absent["torch:cpu+numpy"] == "This study has no hybrids of two backends."
    assert on_gpu("cupy+numba")
    assert not on_gpu("numba+cupy")
    assert is_name("torch:cuda+numba")
    assert not is_name("numpy+numba+cupy")


def test_names_say_backend_and_device() -> None:
    assert backend_of("torch.nn-loader:cuda:1") == "torch:cuda:1"
    assert backend_of("jax.lax:gpu") == "jax:gpu"
    assert backend_of("numba") == "numba"
    assert [on_gpu(n) for n in ("cupy", "torch.nn:cuda", "jax:gpu", "torch:mps", "numpy", "jax.lax:cpu")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


def test_what_is_found_can_run_and_what_is_not_says_why() -> None:
    field = find()
    assert field.present[0] == "numpy"
    for name in field.present:
        if not on_gpu(name):
            backends.get_backend(backend_of(name))
    assert set(field.present) | set(field.absent) == set(names())
    assert all(len(why) > 10 and "\n" not in why for why in field.absent.values())
    assert field.machine["cores"] >= 1
    assert "numpy" in field.machine["versions"]
