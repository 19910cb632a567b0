"""Reports of classifiers: tables by hand, confusion, mistakes, and names of classes that a saved model keeps."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn.data import DataError, read_images
from minicnn.files import SavedModelError, read_tensors, write_tensors
from minicnn.layers import Dense, Flatten, Input
from minicnn.visual import ClassificationReport, ConfusionMatrixDisplay

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 1), np.uint8)
SCORES = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.7, 0.1], [0.3, 0.6, 0.1], [0.5, 0.4, 0.1]]))
LABELS = [0, 1, 1, 0, 1]
NAMES = ["cat", "dog", "<emu>"]


def report(**given: Any) -> ClassificationReport:
    return ClassificationReport(IMAGES, LABELS, SCORES, NAMES, **given)


def test_the_table_of_the_classes_by_hand() -> None:
    found = report()
    assert found.accuracy == pytest.approx(3 / 5)
    cat, dog, emu = found.table.values()
    assert cat == pytest.approx({"precision": 1 / 2, "recall": 1 / 2, "f1": 1 / 2, "support": 2})
    assert dog == pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3})
    assert emu == {"precision": 0, "recall": 0, "f1": 0, "support": 0}
    assert str(found).splitlines()[2] == "dog                      0.667   0.667  0.667        3"
    assert str(found).endswith("accuracy 60.00%")
    assert "&lt;emu&gt;" in found._repr_html_()


@pytest.mark.parametrize(
    "labels", [LABELS, np.eye(3)[LABELS], np.array(LABELS)[:, None]], ids=["numbers", "one-hot", "column"]
)
def test_labels_have_several_forms(labels: Any) -> None:
    assert ClassificationReport(IMAGES, labels, SCORES).y_true.tolist() == LABELS


def test_outputs_may_be_scores_probabilities_or_one_column() -> None:
    np.testing.assert_allclose(report().probabilities, np.exp(SCORES))
    np.testing.assert_allclose(ClassificationReport(IMAGES, LABELS, np.exp(SCORES)).probabilities, np.exp(SCORES))
    two = ClassificationReport(IMAGES, LABELS, np.array([[0.25], [0.75], [0.5], [0.5], [1.0]]))
    np.testing.assert_allclose(two.probabilities[0], [0.75, 0.25])
    scores = ClassificationReport(IMAGES, LABELS, np.array([[-1.0], [1], [2], [0], [3]]))
    np.testing.assert_allclose(scores.probabilities[1], [1 / (1 + np.e), np.e / (1 + np.e)])


def test_mistakes_begin_with_the_surest() -> None:
    drawing = report().mistakes()
    assert drawing.title == "2 mistakes in 5 samples"
    assert drawing.body.index("cat, number 3") < drawing.body.index("dog, number 4")
    assert "as dog, 60%" in drawing.body
    assert report().mistakes(1).body.count("<image") == 1
    with pytest.raises(ValueError, match="Mistakes are shown of images"):
        ClassificationReport(np.ones((5, 4)), LABELS, SCORES).mistakes()


def test_a_matrix_is_drawn_with_names_as_text(tmp_path: Path) -> None:
    display = ConfusionMatrixDisplay([[8, 2, 0], [1, 9, 0], [0, 0, 0]], NAMES)
    body = display.plot().body
    assert "<title>cat as dog: 2</title>" in body
    assert "&lt;emu&gt; as cat: 0" in body
    assert ">0.80</text>" in display.plot(normalize="true").body
    assert ">0.89</text>" in display.plot(normalize="pred").body
    display.plot().save(tmp_path / "m.svg")
    assert ET.parse(tmp_path / "m.svg").getroot().tag.endswith("svg")
    assert repr(display) == "<ConfusionMatrixDisplay of 3 classes: 17 of 20 right>"
    assert display._repr_html_().startswith("<svg")
    with pytest.raises(ValueError, match="normalize"):
        display.plot(normalize="all")  # type: ignore[arg-type]


def test_of_many_classes_the_most_confused_are_drawn() -> None:
    counts = np.diag(np.full(40, 9))
    counts[3, 38] = counts[38, 3] = 5
    drawing = ConfusionMatrixDisplay(counts).plot()
    assert drawing.title == "confusion matrix, the 25 most confused of 40 classes"
    assert "3 as 38: 5" in drawing.body
    assert drawing.body.count("<rect") == 25 * 25


def test_errors_of_reports_name_the_rule() -> None:
    with pytest.raises(ValueError, match=r"as many rows as columns\. Received: shape \(2, 3\)"):
        ConfusionMatrixDisplay(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"a name for each of the 2 classes\. Received: 3 names"):
        ConfusionMatrixDisplay(np.ones((2, 2)), NAMES)
    with pytest.raises(ValueError, match="Take the argmax of scores"):
        ConfusionMatrixDisplay.from_predictions([0, 1], [0.5, 0.5])
    with pytest.raises(ValueError, match="Class numbers are from 0 to 1"):
        ConfusionMatrixDisplay.from_predictions([0, 2], [0, 1], ["a", "b"])
    with pytest.raises(ValueError, match=r"Received: 5 samples and labels of shape \(4,\)"):
        ClassificationReport(IMAGES, LABELS[:4], SCORES)
    with pytest.raises(ValueError, match=r"outputs of shape \(N, classes\)\. Received: \(5, 3, 1\)"):
        ClassificationReport(IMAGES, LABELS, SCORES[..., None])


def network() -> Sequential:
    return Sequential([Input((4, 4, 1), dtype="uint8"), Flatten(), Dense(3)])


def test_a_saved_model_keeps_its_class_names(tmp_path: Path) -> None:
    model = network()
    assert model.class_names is None
    model.class_names = NAMES
    model.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    assert loaded.class_names == tuple(NAMES)
    found = loaded.report(IMAGES, LABELS)
    assert found.class_names == NAMES
    assert found.y_pred.tolist() == model.predict(IMAGES).argmax(1).tolist()
    model.class_names = None
    model.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").class_names is None


@pytest.mark.parametrize("names", [["a", "b"], "abc", [1, 2, 3], 3], ids=["few", "text", "numbers", "number"])
def test_names_that_are_none_are_refused(names: Any, tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ValueError, match=r"Received"):
        model.class_names = names
    model.save(tmp_path / "m")
    tensors, about = read_tensors(tmp_path / "m")
    write_tensors(tmp_path / "m", tensors, about | {"class_names": names})
    with pytest.raises(SavedModelError, match="its model cannot be built"):
        Model.load(tmp_path / "m")


def test_images_are_read_as_a_model_takes_them(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    paths = [tmp_path / "wide.png", tmp_path / "high.jpg"]
    image.new("RGB", (20, 10), (200, 0, 0)).save(paths[0])
    image.new("L", (10, 30), 90).save(paths[1])
    model = network()
    found = read_images(paths, model.input_shape)
    assert found.shape == (2, 4, 4, 1)
    assert found.dtype == np.uint8
    assert model.predict(found).shape == (2, 3)
    assert read_images(paths[0]).shape == (1, 10, 20, 3)
    assert read_images(str(paths[0]), (5, 6, 3))[0, 2, 3].tolist() == [200, 0, 0]
    with pytest.raises(DataError, match="all images have the same size"):
        read_images(paths)
    with pytest.raises(ValueError, match=r"Received: 1 paths, shape \(4, 4, 2\)"):
        read_images(paths[0], (4, 4, 2))
    with pytest.raises(ValueError, match="Received: 0 paths"):
        read_images([])
