"""Attribution of a score to places of an image: gradients, and Grad-CAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn import ops
from minicnn.html import Drawing
from minicnn.names import meant
from minicnn.program import Node, Program, Value, gradients
from minicnn.visual.confusion import names_of_classes
from minicnn.visual.gallery import enlarged, gallery, heated, pixels
from minicnn.visual.report import probabilities

if TYPE_CHECKING:
    from minicnn.layers import Layer
    from minicnn.models import Model

Array = np.ndarray[Any, Any]

CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv2d_input_gradient")  # the last is the transposed convolution
AT_ONCE = 32  # images in a run


@dataclass(frozen=True, eq=False)
class Attribution:
    """Maps of the places on which the scores of images depend.

    Attributes:
        maps: Float (N, h, w), not negative, in units of the gradient; h and w are those of the layer that was asked.
        targets: Class whose score it is, for each image.
        probabilities: Of all classes, (N, K).
        images: The images, uint8 (N, H, W, 3).
        title: What the maps are.
        class_names: Names of the classes.
    """

    maps: Array
    targets: Array
    probabilities: Array
    images: Array
    title: str
    class_names: Sequence[str]

    @property
    def overlays(self) -> Array:
        """The images in grey with the maps over them, uint8 (N, H, W, 3); each map's largest element is brightest."""
        large = enlarged(self.maps, self.images.shape[1:3])
        return heated(self.images, large / np.maximum(large.max((1, 2), keepdims=True), np.finfo(np.float64).tiny))

    def plot(self) -> Drawing:
        """Each image beside its map; a drawing, which a notebook shows and `save("maps.svg")` writes."""
        images, captions = [], []
        for image, overlay, target, shares in zip(
            self.images, self.overlays, self.targets, self.probabilities, strict=True
        ):
            images += [image, overlay]
            captions += [(self.class_names[target],), (f"{shares[target]:.0%}",)]
        return gallery(self.title, images, captions, columns=6)

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()

    def __repr__(self) -> str:
        count, high, wide = self.maps.shape
        return f"<Attribution: {self.title}, {count} maps of {high} x {wide}; plot() draws them>"


class Attributor:
    """A model with the gradient of one score, compiled for a number of images; `Model.grad_cam` uses it.

    Saliency is the largest absolute derivative of the score by a pixel's channels (K. Simonyan, A. Vedaldi,
    A. Zisserman, Deep inside convolutional networks, arXiv:1312.6034). Grad-CAM weighs each feature map of a
    convolution by the mean of the score's derivatives by it, and keeps what is positive (R. Selvaraju et al.,
    arXiv:1610.02391). The score is that before a softmax at the end. Where a max-pooling follows an activation it is
    computed before it, so feature maps are taken where the activation stands in the network.

    Args:
        model: The model, built: one input of images, one output (N, K).
        batch_size: Images in a run.

    Attributes:
        layers: Paths of the convolutions, in order.

    Raises:
        ValueError: If the model has several inputs or outputs, or its input are no images.
    """

    def __init__(self, model: Model, batch_size: int = 1) -> None:
        program = model.program("predict", batch_size=batch_size)
        read = {id(v) for node in program.nodes for v in node.inputs}
        inputs = [v for v in program.inputs if v.kind == "input" and id(v) in read]
        outputs = list(program.outputs.values())
        if len(inputs) != 1 or len(outputs) != 1 or inputs[0].spec.ndim != 4 or outputs[0].spec.ndim != 2:
            raise ValueError(
                "Places on which a score depends are those of one image, and a score one of (N, classes). Received: "
                f"inputs {', '.join(str(v.spec) for v in inputs)} and outputs "
                f"{', '.join(str(v.spec) for v in outputs)}."
            )
        self._backend, self.batch_size, self._x = model.backend, batch_size, inputs[0]
        convolutions = [n for n in program.nodes if n.op.name in CONVOLUTIONS]
        self.channels_first = channels_first(model)
        self._rectified = {n.scope for n in program.nodes if n.op.name == "relu"}
        features = {n.scope: _features(program, n) for n in convolutions}
        self.layers = list(features)
        scores, self._image = _scores(outputs[0]), _image(program, inputs[0])
        classes = scores.shape[-1]
        target = program.input("target", (batch_size,), "int32")
        chosen = ops.where(ops.less(target, 0), ops.argmax(scores), target)
        wanted = ops.one_hot(chosen, classes=classes, dtype=scores.dtype)
        wrt = [self._image, *features.values()]
        derivatives = gradients(program, ops.sum(scores * wanted), wrt)
        program.outputs = {
            "outputs": outputs[0], "chosen": chosen, "image": derivatives[0],
            **{f"features {name}": value for name, value in features.items()},
            **{f"gradient {name}": value for name, value in zip(features, derivatives[1:], strict=True)},
        }  # fmt: skip
        program.updates = {}
        self._program = program
        self._run = self._backend.compile(program)
        self.reload(model)

    @property
    def program(self) -> Program:
        """The Program that is run: outputs, features, and derivatives."""
        return self._program

    @property
    def x(self) -> Value:
        """The Program's input that images are given to."""
        return self._x

    @property
    def arrays(self) -> dict[str, Array]:
        """The Program's other inputs by name, but `target`."""
        return {name: np.asarray(self._backend.to_numpy(array)) for name, array in self._arrays.items()}

    @property
    def rectified(self) -> list[str]:
        """Paths of the convolutions that a ReLU follows."""
        return [name for name in self.layers if name in self._rectified]

    def reload(self, model: Model) -> None:
        """Take the weights that the model has now."""
        weights = model.get_weights()
        self._arrays = {
            v.name: self._backend.asarray(weights.get(v.name, np.zeros(v.shape)), v.dtype)
            for v in self._program.inputs
            if v.name not in (self._x.name, "target")
        }

    def __call__(self, images: Array, target: Array) -> dict[str, Array]:
        """Outputs, chosen classes, derivatives by the image, and features and derivatives of each convolution.

        Args:
            images: As the model takes them; at most `batch_size`.
            target: Classes (N,); -1 for the one that is predicted.
        """
        if images.shape[1:] != self._x.shape[1:]:
            raise ValueError(f"Images have shape {self._x.shape[1:]}. Received: {images.shape[1:]}. Resize them.")
        rows = len(images)
        fill = np.arange(self.batch_size) % rows  # a run has as many as it was compiled for
        arrays = self._arrays | {
            self._x.name: self._backend.asarray(np.ascontiguousarray(images[fill]), self._x.dtype),
            "target": self._backend.asarray(target[fill].astype(np.int32), "int32"),
        }
        results = self._run(arrays)
        return {name: np.array(self._backend.to_numpy(array))[:rows] for name, array in results.items()}

    def saliency(self, run: dict[str, Array]) -> Array:
        """Maps (N, H, W) of a run."""
        result: Array = np.abs(run["image"].astype(np.float32)).max(1 if self.channels_first else -1)
        return result

    def grad_cam(self, run: dict[str, Array], layer: str) -> Array:
        """Maps (N, h, w) of a run, at the size of a convolution's result."""
        features, slopes = (run[f"{what} {layer}"].astype(np.float32) for what in ("features", "gradient"))
        if self.channels_first:
            features, slopes = (a.transpose(0, 2, 3, 1) for a in (features, slopes))
        if layer in self._rectified:
            features = np.maximum(features, 0)
        weights = slopes.mean((1, 2), keepdims=True)
        return np.maximum((weights * features).sum(-1), 0)

    def named(self, layer: str | Layer | None, model: Model) -> str:
        """Path of a convolution; of the last one if None.

        Raises:
            ValueError: If there is none of that name.
        """
        name = layer if isinstance(layer, str) else self.layers[-1] if layer is None and self.layers else None
        if layer is not None and name is None:
            name = model.layer_name(layer)  # type: ignore[arg-type]
        if name not in self.layers:
            proposal = meant(str(name), self.layers) if self.layers else ""
            raise ValueError(
                f"Grad-CAM is of a convolution: {', '.join(self.layers) or 'the model has none'}. Received: "
                f"{layer!r}.{proposal}"
            )
        return name


def attributed(
    model: Model, x: Any, target: Any, layer: str | Layer | None, kind: str, class_names: Sequence[str] | None
) -> Attribution:
    """Maps of many images; see `Model.saliency` and `Model.grad_cam`."""
    images = np.asarray(x)
    if not len(images):
        raise ValueError("There is at least one image. Received: none.")
    attributor = Attributor(model, min(AT_ONCE, len(images)))
    name = attributor.named(layer, model) if kind == "Grad-CAM" else ""
    wanted = np.broadcast_to(np.asarray(-1 if target is None else target, np.int64), (len(images),))
    runs = [attributor(images[i : i + AT_ONCE], wanted[i : i + AT_ONCE]) for i in range(0, len(images), AT_ONCE)]
    maps = [attributor.grad_cam(run, name) if name else attributor.saliency(run) for run in runs]
    shares = probabilities(np.concatenate([run["outputs"] for run in runs]))
    classes = runs[0]["outputs"].shape[1]
    if wanted.max() >= classes or wanted.min() < -1:
        raise ValueError(f"target is a class from 0 to {classes - 1}. Received: target={target!r:.60}.")
    title = f"Grad-CAM of {name}" if name else "Saliency"
    return Attribution(
        np.concatenate(maps), np.concatenate([run["chosen"] for run in runs]), shares,
        pixels(images, attributor.channels_first), title, names_of_classes(class_names, shares.shape[1]),
    )  # fmt: skip


def channels_first(model: Model) -> bool:
    """True if the model's images are (N, C, H, W): whether one of its layers says so."""
    return any(getattr(layer, "data_format", "channels_last") == "channels_first" for layer in model.layers)


def _scores(output: Value) -> Value:
    """The operand of a softmax at the end; else the output."""
    node = output.node
    return node.inputs[0] if node is not None and node.op.name in ("softmax", "sigmoid") else output


def _image(program: Program, x: Value) -> Value:
    """The first floating-point form of the input: bytes have no derivative."""
    value = x
    while "float" not in value.dtype:
        value = next(node.outputs[0] for node in program.nodes if value in node.inputs)
    return value


def _features(program: Program, convolution: Node) -> Value:
    """The last result of a convolution's layer that is as large: after its bias and its activation."""
    size = convolution.outputs[0].shape
    nodes = [n for n in program.nodes if n.scope == convolution.scope and n.outputs[0].shape == size]
    return nodes[-1].outputs[0]
