"""`minicnn grade` cannot be fooled: each way to points without an answer gets none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import minicnn
from minicnn.exercises import grading, wire
from minicnn.exercises.exercise import Example, Exercise, Item, Speed, WrongError
from minicnn.exercises.grading import Grade
from minicnn.exercises.language import translated

Graded = Callable[..., Grade]
Solution = Callable[[str], str]

LIBRARY = Path(minicnn.__file__).parent
SOURCE = LIBRARY / "ops" / "convolution.py"
PACKAGES = [str(LIBRARY.parent), *(path for path in sys.path if path.endswith("-packages"))]

# Each is a submission to `convolution`. ANSWER stands for the reference, however it was come by.
CHEATS = {
    # The reference of the library.
    "import": "from minicnn import ops\nconv2d = ops.conv2d.reference",
    "import in a call": """
        def conv2d(x, w, **options):
            from minicnn import ops
            return ops.conv2d.reference(x, w, **options)""",
    "path": f"import sys\nsys.path[:0] = {PACKAGES}\nfrom minicnn import ops\nconv2d = ops.conv2d.reference",
    "finders": f"""
        import sys
        sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "Packages"]
        sys.path[:0] = {PACKAGES}
        from minicnn import ops
        conv2d = ops.conv2d.reference""",
    "loader": f"""
        from importlib.machinery import SourceFileLoader
        conv2d = SourceFileLoader("convolution", {str(SOURCE)!r}).load_module().conv2d""",
    "source": f"exec(open({str(SOURCE)!r}).read())",
    "source by descriptor": f"import os\nexec(os.read(os.open({str(SOURCE)!r}, 0), 1 << 20))",
    "source by a path with two faces": f"""
        import io
        class Path(str):
            def startswith(self, *_):
                return True
            def __contains__(self, _):
                return False
        exec(io.FileIO(Path({str(SOURCE)!r})).readall())""",
    "source by NumPy": f"import numpy\nexec(numpy.fromfile({str(SOURCE)!r}, 'u1').tobytes())",
    "source by another way": f"import sys\nexec(open(sys.prefix + '/../../..' + {str(SOURCE)!r}).read())",
    "link": f"import os\nos.symlink({str(LIBRARY)!r}, 'here')\nexec(open('here/ops/convolution.py').read())",
    "folder": f"import os\nos.chdir({str(LIBRARY)!r})\nexec(open('ops/convolution.py').read())",
    "scipy": "from scipy.signal import convolve as conv2d",
    # The guard.
    "the code of the guard": """
        try:
            open("x")
        except PermissionError as error:
            hook = error.__traceback__.tb_next.tb_frame.f_globals["hook"]
            hook.__code__ = (lambda event, args: None).__code__
        from minicnn import ops""",
    "the words of the guard": f"""
        import builtins
        builtins.PermissionError = lambda text: None
        builtins.str = builtins.type = builtins.any = builtins.tuple = lambda *a: True
        exec(open({str(SOURCE)!r}).read())""",
    "ctypes": "import ctypes\nctypes.CDLL(None).system(b'true')",
    "memory": "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')",
    "objects": "import gc\nANSWERS = gc.get_objects()",
    "frames": """
        import sys
        def conv2d(x, w, **options):
            frame = sys._getframe()
            shape = x.shape[0], x.shape[1] - w.shape[0] + 1, x.shape[2] - w.shape[1] + 1, w.shape[3]
            while frame:
                for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
                    if getattr(value, "shape", None) == shape:
                        return value
                frame = frame.f_back""",
    # Other processes.
    "fork": "import os\nos.fork()",
    "shell": "import os\nos.system('true')",
    "subprocess": "import subprocess\nsubprocess.run(['true'])",
    "fork by another way": "import _posixsubprocess",
    "grader": "import os\nos.kill(os.getppid(), 9)",
    "socket": "import socket\nsocket.create_connection(('127.0.0.1', 9))",
    "file": "open('left', 'w')",
    "poison": "import numpy\nopen(numpy.__file__, 'a')",
    # Forged output.
    "print": "print('10 of 10 points')\ndef conv2d(*_, **options):\n    print({'points': 10})",
    "descriptors": """
        import os
        for number in range(20):
            try:
                os.write(number, b'\\x0c' + 15 * b'\\0' + b'{"result": 1')
            except OSError:
                pass
        def conv2d(*_, **options): pass""",
    "messages": """
        import sys
        wire = sys.modules["wire"]
        packed = wire.packed
        wire.packed = lambda value: packed({"result": True, "points": 10, "of": 10, "ready": ["conv2d"]})
        def conv2d(*_, **options): pass""",
    "pickle": "import pickle\ndef conv2d(*_, **options):\n    return pickle.dumps(1)",
    "library": """
        import numpy
        numpy.allclose = numpy.array_equal = lambda *_, **options: True
        numpy.abs = lambda a: 0 * a
        def conv2d(x, w, **options): return x""",
    # Ends.
    "_exit": "import os\nos._exit(0)",
    "_exit in a call": "import os\ndef conv2d(*_, **options):\n    os._exit(0)",
    "exit": "raise SystemExit(0)",
    "exit in a call": "def conv2d(*_, **options):\n    raise SystemExit(0)",
    "interrupt": "def conv2d(*_, **options):\n    raise KeyboardInterrupt",
    "closed output": "import os\ndef conv2d(*_, **options):\n    os.closerange(3, 99)",
    "signal": "import signal\ndef conv2d(*_, **options):\n    signal.raise_signal(9)",
    "recursion": "def conv2d(*a, **options):\n    return conv2d(*a, **options)",
    "error that lies": """
        class Liar(Exception):
            def __str__(self): raise Liar
        def conv2d(*_, **options):
            raise Liar""",
    # Results.
    "replay": """
        ANSWERS = {}
        def conv2d(x, w, **options):
            y = x[:, : 1 - w.shape[0] or None, : 1 - w.shape[1] or None, :1] + 0 * w[0, 0, 0]
            return ANSWERS.setdefault((x.shape, w.shape), y)""",
    "example": """
        import numpy
        def conv2d(x, w, **options):
            return numpy.array([[[[4.0], [10.0]]]])""",
    "huge": "import numpy\ndef conv2d(*_, **options):\n    return numpy.zeros(1 << 21)",
    "long text": "def conv2d(*_, **options):\n    return 'x' * (1 << 24)",
    "deep": """
        def conv2d(*_, **options):
            nest = []
            for _ in range(100_000):
                nest = [nest]
            return nest""",
    "always equal": """
        class Yes:
            shape, dtype, ndim = (), float, 0
            __eq__ = __ge__ = __le__ = __bool__ = lambda *_: True
        def conv2d(*_, **options): return Yes()""",
    "objects as elements": "import numpy\ndef conv2d(*_, **options):\n    return numpy.array([None])",
    "NaN": """
        import numpy
        def conv2d(x, w, **options):
            shape = x.shape[0], x.shape[1] - w.shape[0] + 1, x.shape[2] - w.shape[1] + 1, w.shape[3]
            return numpy.full(shape, numpy.nan)""",
    "nothing": "def conv2d(*_, **options): pass",
    "view": "def conv2d(x, w, **options): return x[...]",
    "raises": "def conv2d(*_, **options): raise ValueError('no')",
}  # fmt: skip


@pytest.mark.sampled(26)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_gets_no_points(cheat: str, graded: Graded) -> None:
    text = textwrap.dedent(CHEATS[cheat]).strip("\n")
    try:
        grade = graded("convolution", text)
    except ValueError as error:
        assert str(error).startswith("A submission to convolution can be run. Received:")  # noqa: PT017
    else:
        assert grade.points == 0, grade
        assert grade.outcomes[0].text


def test_a_right_answer_with_a_cheat_beside_it_gets_the_points_of_one(graded: Graded, solution: Solution) -> None:
    """What a submission prints, patches or leaves in threads changes nothing."""
    text = solution("convolution") + textwrap.dedent("""
        import sys, threading, time
        print("10 of 10 points")
        threading.Thread(target=lambda: time.sleep(60), daemon=True).start()
        time.perf_counter = time.monotonic = lambda: 0
        right, kept = conv2d, []
        def conv2d(*arrays, **options):
            kept.append(right(*arrays, **options))
            threading.Timer(0.01, lambda y: y.fill(7), kept[-1:]).start()
            return kept[-1]
    """)
    grade = graded("convolution", text)
    assert [o.points for o in grade.outcomes[:3]] == [2, 2, 2]
    assert "10 of 10" in grade.printed


def test_a_changed_argument_and_a_view_are_told(graded: Graded, solution: Solution) -> None:
    text = solution("convolution").replace("def conv2d(", "def right(")
    text += "\n\ndef conv2d(x, w, **o):\n    y = right(x, w, **o)\n    w[0, 0, 0, 0] = 7\n    return y\n"
    assert "conv2d changes an argument" in graded("convolution", text).outcomes[0].text
    view = "def conv2d(x, w, **options):\n    return x[:, :1]\n"
    assert "a result of conv2d is a view of an argument" in graded("convolution", view).outcomes[0].text


def test_a_faked_clock_and_a_memory_of_answers_do_not_help_slow_code(
    graded: Graded, solution: Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "BOUTS", 1)
    monkeypatch.setattr(grading, "TIMES", 2)
    slow = solution("convolution").replace(
        "    n, _, _, c = x.shape",
        """
    import time
    key = (x.shape, w.shape)
    if x.size > 10_000 and key in MEMORY:
        return MEMORY[key]
    if x.size > 10_000:
        start = real()
        while real() < start + 0.5:
            pass
    n, _, _, c = x.shape""",
    )
    head = "import time\nreal = time.perf_counter\ntime.perf_counter = time.monotonic = lambda: 0\nMEMORY = {}\n"
    grade = graded("convolution", head + slow)
    assert {o.name for o in grade.outcomes if not o.points} == {"speed"}
    assert "times as long as a product for each tap, of at most 4" in grade.outcomes[-1].text
    head += "def kept(key, y):\n    return MEMORY.setdefault(key, y) if y.size > 10_000 else y\n"
    replays = slow.replace("return xp.reshape(xp.matmul(", "return kept(key, xp.reshape(xp.matmul(")
    replays = replays.replace("(n, oh, ow, f))", "(n, oh, ow, f)))")
    assert replays != slow
    grade = graded("convolution", head + replays)
    assert grade.outcomes[-1].points == 0
    assert "should be" in grade.outcomes[-1].text


def test_wrong_answers_are_not_timed(graded: Graded, solution: Solution) -> None:
    text = solution("convolution").replace("zip((1, 2), padding, strict=True)", "()")
    grade = graded("convolution", text)
    assert [o.points for o in grade.outcomes] == [2, 2, 0, 0, 0], grade
    assert "the padding is ignored" in grade.outcomes[2].text
    assert grade.outcomes[-1].text == "not tried, as the results are wrong"


def test_a_gradient_without_its_function_gets_no_points(graded: Graded, solution: Solution) -> None:
    text = solution("cross_entropy") + "\n\ndef softmax_cross_entropy(logits, labels, *, xp):\n    raise ValueError\n"
    grade = graded("cross_entropy", text)
    assert grade.points == 0
    assert grade.outcomes[2].text == "not tried, as 'loss' is wrong"


def test_a_time_that_no_machine_reaches_is_refused(
    graded: Graded, solution: Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "FLOPS", 1e5)  # so that the work would take minutes
    outcome = graded("convolution", solution("convolution")).outcomes[-1]
    assert outcome.points == 0
    assert "less than any machine takes" in outcome.text


def test_what_hangs_is_stopped(graded: Graded) -> None:
    start = time.monotonic()
    grade = graded("convolution", "while True:\n    pass\n", limit_s=1.5)
    assert time.monotonic() - start < 20
    assert grade.points == 0
    assert grade.outcomes[0].text == "stopped here at the limit of time of all checks together (--limit)"


def test_a_process_that_dies_in_one_task_is_started_again_for_the_next(graded: Graded, solution: Solution) -> None:
    text = solution("convolution").replace(
        "    n, _, _, c",
        "    import os\n    strides == (1, 1) or padding != ((0, 0), (0, 0)) or os._exit(7)\n    n, _, _, c",
    )
    grade = graded("convolution", text)
    assert [o.points for o in grade.outcomes] == [2, 0, 2, 0, 0]
    assert grade.outcomes[1].text == "its process ended with code 7 here"


def test_arguments_are_drawn_anew_and_can_be_drawn_again(tmp_path: Path) -> None:
    path = tmp_path / "submission.py"
    path.write_text("def conv2d(x, w, **options):\n    raise ValueError(float(x.sum()))\n", "utf-8")
    first, second = (grading.grade("convolution", path, libraries=["numpy"]) for _ in range(2))
    assert first.seed != second.seed
    again = grading.grade("convolution", path, libraries=["numpy"], seed=first.seed)
    assert again == first


# The two layers of confinement ---------------------------------------------------------------------------

LANDLOCKED = f"""
import os, sys
sys.path.insert(0, {str(LIBRARY / "exercises")!r})
import confinement
standard = [path for path in sys.path[1:] if os.path.exists(path)]
if not confinement.landlock(standard, [], [{str(LIBRARY)!r}, *{PACKAGES[1:]}], os.getcwd()):
    raise SystemExit(3)
def refused(attempt):
    try:
        attempt()
    except PermissionError:
        return
    raise SystemExit(attempt.__name__)
def source(): open({str(SOURCE)!r})
def memory(): open(f"/proc/{{os.getppid()}}/mem", "rb")
def program(): os.execv("/bin/sh", ["/bin/sh", "-c", "exit 0"])
def elsewhere(): open({str(LIBRARY.parent / "left")!r}, "w")
def trace():
    import ctypes
    library = ctypes.CDLL(None, use_errno=True)
    if library.ptrace(16, os.getppid(), 0, 0) != 0:
        raise PermissionError
for attempt in (source, memory, program, elsewhere, trace):
    refused(attempt)
open("inside", "w").write("x")
"""


def test_landlock_alone_hides_the_answers_and_the_grader(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", LANDLOCKED], cwd=tmp_path, capture_output=True, text=True)
    if ended.returncode == 3:
        pytest.skip("this system has no Landlock")
    assert ended.returncode == 0, ended.stderr


def test_the_guard_alone_hides_the_answers(
    tmp_path: Path, graded: Graded, solution: Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems without Landlock."""
    monkeypatch.setattr("minicnn.exercises.process.WORKER", worker := tmp_path / "worker.py")
    folder = LIBRARY / "exercises"
    for name in ("wire.py", "confinement.py", "worker.py"):
        text = (folder / name).read_text("utf-8").replace('sys.platform.startswith("linux")', "False")
        (tmp_path / name).write_text(text, "utf-8")
    assert worker.exists()
    assert graded("cross_entropy", solution("cross_entropy")).points == 10
    for cheat in ("source by descriptor", "path", "subprocess", "memory"):
        with pytest.raises(
            ValueError, match=r"PermissionError: A submission|No module named 'minicnn'|without minicnn"
        ):
            graded("convolution", textwrap.dedent(CHEATS[cheat]).strip("\n"))


# Messages --------------------------------------------------------------------------------------------------


def test_messages_keep_values() -> None:
    import io

    value = {
        "a": (1, 2.5, None, True, "x"),
        "b": [np.arange(6, dtype="int32").reshape(2, 3), np.float32(1.5)],
        3: float("inf"),
    }
    read = wire.read(io.BytesIO(wire.packed(value)))
    assert read["a"] == value["a"]
    assert read[3] == float("inf")
    assert read["b"][0].dtype == "int32"
    assert np.array_equal(read["b"][0], value["b"][0])  # type: ignore[index]
    assert read["b"][1].shape == ()


@pytest.mark.parametrize(
    "tree",
    [
        b'{"array": ["O", [1], 0]}', b'{"array": ["<f8", [1000000000000], 0]}', b'{"array": ["<f8", [-1], 0]}',
        b'{"array": ["<f8", [2], -8]}', b'{"array": ["<f8", ["1"], 0]}', b'{"array": 1}', b'{"dict": [[[], 1]]}', b"{}",
        b"\xff", b"[" * 100_000, b'{"tuple": 1}',
    ],
)  # fmt: skip
def test_hostile_messages_are_refused(tree: bytes) -> None:
    import io

    with pytest.raises(wire.WireError):
        wire.read(io.BytesIO(wire.HEAD.pack(len(tree), 8) + tree + 8 * b"\0"))


def test_a_message_that_would_fill_the_memory_is_refused_by_its_head() -> None:
    import io

    with pytest.raises(wire.WireError, match="is longer than"):
        wire.read(io.BytesIO(wire.HEAD.pack(1 << 40, 0)))
    with pytest.raises(EOFError):
        wire.read(io.BytesIO(wire.HEAD.pack(4, 0) + b"1"))


# Kernels ---------------------------------------------------------------------------------------------------

HEAD = "from numba import cuda\nimport math\n\n@cuda.jit\ndef matmul(a, b, c):\n    "


@pytest.mark.parametrize(
    "line",
    [
        "a @ b", "c[:] = 0", "import os", "a.__class__", "(1).__class__", "cuda.__dict__", "print(1)", "eval(1)",
        "[x for x in a]", "lambda: 0", "x = a.array", "a.reads = 0", "x = 'text'", "x = 2 ** 99", "global x", "yield",
        "a.array[0]", "math.__loader__", "cuda.shared.array.__self__", "x = _Memory", "with a: pass",
        "open(0)", "assert a", "def f(): pass", "max(*a)", "min(a, key=1)", "raise ValueError", "for x in a: pass",
        "x = f'{a}'", "del a",
    ],
)  # fmt: skip
def test_a_kernel_holds_nothing_but_loops_and_numbers(line: str) -> None:
    with pytest.raises(WrongError, match=r"Received: .* \(line [0-9]+\)"):
        translated((HEAD + line).encode(), "cuda")


@pytest.mark.parametrize(
    "text",
    ["import os\nos.system('true')", "class A: pass", "x = [1]", "def f(a): pass", "@cuda.jit(1)\ndef f(a): pass"],
)
def test_a_file_of_kernels_holds_nothing_else(text: str) -> None:
    with pytest.raises(WrongError, match="Received"):
        translated(text.encode(), "cuda")


def test_a_kernel_that_calls_a_library_is_told(graded: Graded) -> None:
    text = (
        "import numpy as np\nfrom numba import njit\n\n@njit\ndef bias_relu(x, bias, out):\n    np.maximum(x, 0, out)\n"
    )
    with pytest.raises(ValueError, match=r"bias_relu can be run. .* a kernel calls range, min, .* \(line 6\)"):
        graded("bias_relu", text)
    outside = text.replace("    np.maximum(x, 0, out)", "    out[0, 0] = 1").replace(
        "import numpy", "x = open('x')\nimport numpy"
    )
    with pytest.raises(
        ValueError, match=r"a file of kernels holds imports, constants and functions. Received: x = open"
    ):
        graded("bias_relu", outside)


def test_speed_is_the_only_check_that_needs_a_clock() -> None:
    speed = Speed(1, "f", lambda rng: Example(()), "", "x", 1)
    exercise = Exercise("t", "c", (Item("a", 1, "f", lambda rng: Example(())),), {}, speed=speed, libraries=2)
    assert exercise.checks == [("a", 1), ("libraries", 2), ("speed", 1)]
    assert exercise.points == 4
    assert os.sep
