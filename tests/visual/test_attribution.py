"""Saliency and Grad-CAM against differences of the scores, on every backend, for any convolution and either layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential
from minicnn.layers import AveragePooling2D, Conv2D, Dense, DepthwiseConv2D, Flatten, Input, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.tolerance import tolerance
from minicnn.visual import Attributor

RNG = np.random.default_rng(0)
IMAGES = RNG.random((3, 8, 8, 2))
RTOL, ATOL = tolerance("float32", 1000)


def network(backend: str = "numpy", data_format: str = "channels_last", last: Any = None) -> Sequential:
    shape = (8, 8, 2) if data_format == "channels_last" else (2, 8, 8)
    layers = [
        Input(shape), Conv2D(3, 3, activation="relu", data_format=data_format, name="early"),
        AveragePooling2D(data_format=data_format),
        Conv2D(4, 2, activation="tanh", data_format=data_format, name="late"),
        Flatten(), Dense(3, activation=last, name="scores"),
    ]  # fmt: skip
    return Sequential(layers, backend=backend, seed=3)


def exact(model: Any) -> Any:
    """The model in float64, so that differences of its scores are good for slopes."""
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True), precision="float64")
    return model


def head(model: Sequential, after: str) -> Model:
    """What follows a layer, as a network of its own on the layer's features."""
    layers = model.layers
    start = 1 + [model.layer_name(layer) for layer in layers].index(after)
    features = inputs = Input(tuple(layers[start - 1].output.shape[1:]))
    for layer in layers[start:]:
        features = layer(features)
    return exact(Model(inputs, features))


def slopes(model: Model, x: np.ndarray[Any, Any], target: int, step: float = 1e-5) -> np.ndarray[Any, Any]:
    """Derivatives of a score by each element of one sample, by central differences."""
    moves = step * np.eye(x.size).reshape(-1, *x.shape)
    ahead, back = (model.predict(x[None] + sign * moves, 256)[:, target] for sign in (1, -1))
    return ((ahead - back) / (2 * step)).reshape(x.shape)


@pytest.mark.parametrize(("layer", "target"), [("early", 0), ("early", 1), ("late", 0), ("late", 1)])
def test_grad_cam_weighs_features_by_the_mean_slope_of_the_score(layer: str, target: int) -> None:
    model = exact(network())
    images = IMAGES[:2]
    found = model.grad_cam(images, layer, target=target)
    features = exact(Model(model.layers[0].input, model.get_layer(layer).output)).predict(images)
    rest = head(model, layer)
    for image, maps in zip(features, found.maps, strict=True):
        weighted = slopes(rest, image, target).mean((0, 1)) * image
        np.testing.assert_allclose(maps, np.maximum(weighted.sum(-1), 0), atol=ATOL * np.abs(weighted).max())
    assert found.maps.any()


def test_saliency_is_the_largest_slope_of_the_channels() -> None:
    model = exact(network())
    found = model.saliency(IMAGES, target=[0, 1, 2])
    for image, maps, target in zip(IMAGES, found.maps, (0, 1, 2), strict=True):
        expected = np.abs(slopes(model, image, target)).max(-1)
        np.testing.assert_allclose(maps, expected, atol=ATOL * expected.max())


@pytest.mark.parametrize("backend", ["torch", "array_api_strict"])
def test_other_backends_give_the_same(backend: str) -> None:
    pytest.importorskip(backend)
    expected, found = network().grad_cam(IMAGES), network(backend).grad_cam(IMAGES)
    np.testing.assert_allclose(found.maps, expected.maps, rtol=RTOL, atol=RTOL * expected.maps.max())


def test_channels_may_come_first() -> None:
    expected, first = network(), network(data_format="channels_first")
    weights = expected.get_weights()
    rows = weights["scores/kernel"].reshape(2, 2, 4, 3)  # Flatten takes the channels in another order
    first.set_weights(weights | {"scores/kernel": rows.transpose(2, 0, 1, 3).reshape(16, 3)})
    images = IMAGES.transpose(0, 3, 1, 2)
    for found, same in ((first.grad_cam(images), expected.grad_cam(IMAGES)),
                        (first.saliency(images), expected.saliency(IMAGES))):  # fmt: skip
        np.testing.assert_allclose(found.maps, same.maps, rtol=RTOL, atol=RTOL * same.maps.max())
        np.testing.assert_array_equal(found.images, same.images)


def test_bytes_max_pooling_and_many_images() -> None:
    layers = [
        Input((8, 8, 2), dtype="uint8"), Rescaling(1 / 255), DepthwiseConv2D(3, activation="relu", name="depthwise"),
        MaxPooling2D(), Conv2D(2, 2, name="pointwise"), Flatten(), Dense(3, activation="softmax"),
    ]  # fmt: skip
    model = Sequential(layers, seed=1)
    model.compile("sgd", "sparse_categorical_crossentropy")
    images = RNG.integers(0, 256, (40, 8, 8, 2), np.uint8)
    found = model.grad_cam(images, model.get_layer("depthwise"))
    assert found.maps.shape == (40, 6, 6), "as large as the convolution's result, before the pooling"
    np.testing.assert_allclose(found.maps[35:], model.grad_cam(images[35:], "depthwise").maps, rtol=RTOL, atol=ATOL)
    assert found.overlays.shape == (40, 8, 8, 3)
    assert found.overlays.dtype == np.uint8
    assert model.saliency(images[:2]).maps.shape == (2, 8, 8)


def test_an_attributor_takes_the_weights_that_there_are_now() -> None:
    model = network()
    attributor = Attributor(model)
    target = np.array([1])
    before = attributor(IMAGES[:1], target)["outputs"]
    model.set_weights({name: array + 0.5 for name, array in model.get_weights().items()})
    attributor.reload(model)
    after = attributor(IMAGES[:1], target)["outputs"]
    np.testing.assert_allclose(after, model.predict(IMAGES[:1]), rtol=RTOL)
    assert not np.allclose(before, after)


def test_drawings_name_classes_as_text() -> None:
    model = network()
    model.class_names = ["<b>", "cat", "dog"]
    drawing = model.grad_cam(IMAGES, target=0).plot()
    assert "&lt;b&gt;" in drawing.body
    assert "<b>" not in drawing.body
    assert drawing.body.count("<image") == 6
    assert model.grad_cam(IMAGES)._repr_html_().startswith("<svg")


def test_filters_are_the_taps_of_the_kernel() -> None:
    model = network()
    assert model.filters().caption.startswith("filters of early: 6 maps of 3 x 3")
    assert model.filters("late").caption.startswith("filters of late: 12 maps of 2 x 2")
    with pytest.raises(ValueError, match=r"Filters are those of a convolution: early, late\. Received: 'scores'"):
        model.filters("scores")


def test_errors_name_the_rule() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"Grad-CAM is of a convolution: early, late\. Received: 'lat'\. Did you"):
        model.grad_cam(IMAGES, "lat")
    with pytest.raises(ValueError, match=r"target is a class from 0 to 2\. Received: target=3"):
        model.grad_cam(IMAGES, target=3)
    with pytest.raises(ValueError, match=r"Images have shape \(8, 8, 2\)\. Received: \(6, 6, 2\)"):
        model.saliency(IMAGES[:, :6, :6])
    with pytest.raises(ValueError, match="There is at least one image"):
        model.saliency(IMAGES[:0])
    rows = Sequential([Input((4,)), Dense(2)])
    with pytest.raises(ValueError, match="Places on which a score depends are those of one image"):
        rows.saliency(np.ones((1, 4)))
