"""The networks of minicnn.zoo as plain torch.nn modules, and weights carried from one library to the other.

The deep networks are compared with them, and the tests take them as the oracle: they are written after the papers and
torchvision's documentation, with none of minicnn's layers. Modules are registered in the order in which they run, the
main path of a block before its shortcut, which is also the order of minicnn's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minicnn.measure.cases import CASES, ConvUnit
from minicnn.zoo import STUDIES

Array = np.ndarray[Any, Any]


# Weights from one to the other ------------------------------------------------------------------


def tensors(network: nn.Module) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every parameter and running statistic with its module, in the order in which they are used."""
    for module in network.modules():
        for name in ("weight", "bias", "running_mean", "running_var"):
            if isinstance(getattr(module, name, None), Tensor):
                yield module, getattr(module, name)


def image_before_dense(network: nn.Module, x: Tensor) -> tuple[int, int, int] | None:
    """Channels, height and width that the network flattens, if it does."""
    shapes = []
    handles = [
        m.register_forward_hook(lambda module, inputs, outputs: shapes.append(tuple(inputs[0].shape[1:])))
        for m in network.modules()
        if isinstance(m, nn.Flatten)
    ]
    network.eval()
    with torch.no_grad():
        network(x)
    for handle in handles:
        handle.remove()
    return shapes[0] if shapes and len(shapes[0]) == 3 else None


def in_torch_order(
    network: nn.Module, arrays: Mapping[str, Array], image: tuple[int, int, int] | None
) -> list[tuple[str, Tensor]]:
    """minicnn's arrays by weight path as tensors of the shapes and orders that the torch network has.

    Args:
        network: The torch network.
        arrays: Arrays of all weights (kernels HWIO, dense kernels with rows in NHWC order) in the model's order.
        image: (C, H, W) of what is flattened before the first dense layer.
    """
    targets = list(tensors(network))
    if len(targets) != len(arrays):
        raise ValueError(
            f"Both networks have the same weights. Received: {len(arrays)} arrays for {len(targets)} tensors."
        )
    converted = []
    for (path, array), (module, tensor) in zip(arrays.items(), targets, strict=True):
        a = torch.tensor(array)
        if isinstance(module, nn.Conv2d) and a.ndim == 4:
            # A depthwise kernel (KH, KW, C, 1) is (C, 1, KH, KW) in torch, any other (KH, KW, C, F) is (F, C, KH, KW).
            a = a.permute(2, 3, 0, 1) if module.groups > 1 else a.permute(3, 2, 0, 1)
        elif isinstance(module, nn.Linear) and a.ndim == 2:
            if image is not None:
                c, h, w = image
                a = a.reshape(h, w, c, -1).permute(2, 0, 1, 3).reshape(c * h * w, -1)
                image = None  # only the first dense layer sees an image
            a = a.T
        if a.shape != tensor.shape:
            raise ValueError(
                f"A weight has one shape in both networks. Received: {path} {tuple(a.shape)} for "
                f"{type(module).__name__} {tuple(tensor.shape)}."
            )
        converted.append((path, a.contiguous()))
    return converted


def in_minicnn_order(
    network: nn.Module, paths: Iterable[str], image: tuple[int, int, int] | None,
    of: Callable[[Tensor], Tensor] = Tensor.detach,
) -> dict[str, Array]:  # fmt: skip
    """The inverse of `in_torch_order`: the torch network's weights, or what belongs to each, by weight path.

    Args:
        network: The torch network.
        paths: Paths of all weights in the model's order.
        image: (C, H, W) of what is flattened before the first dense layer.
        of: Gives the tensor of a weight, such as its gradient.
    """
    arrays = {}
    for path, (module, tensor) in zip(paths, tensors(network), strict=True):
        a = of(tensor)
        if isinstance(module, nn.Conv2d) and a.ndim == 4:
            a = a.permute(2, 3, 0, 1) if module.groups > 1 else a.permute(2, 3, 1, 0)
        elif isinstance(module, nn.Linear) and a.ndim == 2:
            a = a.T
            if image is not None:
                a = a.reshape(*image, -1).permute(1, 2, 0, 3).reshape(a.shape)
                image = None  # only the first dense layer sees an image
        arrays[path] = a.cpu().numpy().copy()
    return arrays


def load(network: nn.Module, arrays: Mapping[str, Array], image: tuple[int, int, int] | None) -> None:
    """Copy minicnn's weights into the torch network."""
    with torch.no_grad():
        for (_, tensor), (_, a) in zip(tensors(network), in_torch_order(network, arrays, image), strict=True):
            tensor.copy_(a)


def build(
    name: str, image: tuple[int, ...], classes: int, weights: Mapping[str, Array], dtype: torch.dtype = torch.float32
) -> nn.Module:
    """A network of the zoo or of a case with minicnn's weights, for images in (N, C, H, W).

    Args:
        name: Its name.
        image: Shape (H, W, C) of an image.
        classes: Number of classes.
        weights: minicnn's weights by path, in the model's order; they tell the widths of dense layers.
        dtype: Type of its weights.
    """
    h, w, c = image
    widths = [a.shape for a in weights.values() if a.ndim == 2]
    case = CASES.get(STUDIES.get(name, name))
    if case is not None and not case.deep:
        network = plain(c, case.convolutions, [widths[0][0], *(units for _, units in widths)])
    else:
        options: dict[str, Any] = {}
        if name in ("alexnet", "overfeat", "vgg11", "vgg16"):
            options["units"] = (widths[0][1], widths[1][1])
        if name in ("overfeat", "resnet9"):
            options["features"] = widths[0][0]
        network = globals()[name](c, classes, **options)
    network = network.to(dtype)
    load(network, weights, image_before_dense(network, torch.zeros(1, c, h, w, dtype=dtype)))
    return network


# Pieces -----------------------------------------------------------------------------------------


class Residual(nn.Module):  # type: ignore[misc]  # mypy does not read PyTorch
    """after(main(x) + shortcut(x))."""

    def __init__(self, main: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.main, self.shortcut, self.after = main, shortcut, after

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.after(self.main(x) + self.shortcut(x))


class Branches(nn.Module):  # type: ignore[misc]  # mypy does not read PyTorch
    """Branches side by side, their channels joined."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def conv(c: int, f: int, k: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    """Convolution and ReLU."""
    return [nn.Conv2d(c, f, k, stride, padding), nn.ReLU()]


def conv_bn(
    c: int, f: int, k: int, stride: int = 1, *, groups: int = 1, eps: float = 1e-5, after: Any = nn.ReLU,
    bias: bool = False,
) -> nn.Sequential:  # fmt: skip
    """Convolution, without bias unless told otherwise, batch normalisation, and an activation if there is one."""
    layers = [nn.Conv2d(c, f, k, stride, k // 2, groups=groups, bias=bias), nn.BatchNorm2d(f, eps)]
    return nn.Sequential(*layers, *([after()] if after else []))


def dense(widths: list[int], *, after: type[nn.Module] = nn.ReLU) -> list[nn.Module]:
    """Linear layers between the given widths, with an activation between them."""
    layers: list[nn.Module] = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), after()]
    return layers[:-1]


def pooled() -> list[nn.Module]:
    """Mean over the image, flattened."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


# Networks: each takes the channels of the images and the number of classes ------------------------


def plain(c: int, convolutions: Sequence[ConvUnit], widths: list[int]) -> nn.Sequential:
    """Convolutions of a case with ReLU and max-pooling, then dense layers between widths."""
    layers: list[nn.Module] = []
    for one in convolutions:
        layers += [*conv(c, one.filters, one.kernel, one.stride), *([nn.MaxPool2d(one.pool)] if one.pool else [])]
        c = one.filters
    return nn.Sequential(*layers, nn.Flatten(), *dense(widths))


def mlp(c: int, classes: int, features: int = 784, units: int = 10) -> nn.Module:
    """mlp of the zoo: channels c of the images, the numbers of classes, of features and of hidden units."""
    return plain(c, (), [features, units, classes])


def platforms(c: int, classes: int, features: int = 400) -> nn.Module:
    """platforms of the zoo: channels c of the images, the number of classes, and that of flattened features."""
    return plain(c, CASES["platforms"].convolutions, [features, 128, classes])


def kernels(c: int, classes: int, features: int = 4608) -> nn.Module:
    """kernels of the zoo: channels c of the images, the number of classes, and that of flattened features."""
    return plain(c, CASES["kernels"].convolutions, [features, classes])


def lenet5(c: int, classes: int) -> nn.Module:
    """lenet5 of the zoo: channels c of the images, and the number of classes."""
    return nn.Sequential(
        nn.Conv2d(c, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), *dense([400, 120, 84, classes], after=nn.Tanh),
    )  # fmt: skip


def alexnet(c: int, classes: int, units: tuple[int, int]) -> nn.Module:
    """alexnet of the zoo: channels c of the images, and the number of classes."""
    return nn.Sequential(
        *conv(c, 64, 11, 4, 2), nn.MaxPool2d(3, 2),
        *conv(64, 192, 5, 1, 2), nn.MaxPool2d(3, 2),
        *conv(192, 384, 3, 1, 1), *conv(384, 256, 3, 1, 1), *conv(256, 256, 3, 1, 1), nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6), nn.Flatten(), *dense([9216, *units, classes]),
    )  # fmt: skip


def overfeat(c: int, classes: int, units: tuple[int, int], features: int) -> nn.Module:
    """overfeat of the zoo: channels c of the images, and the number of classes."""
    return nn.Sequential(
        *conv(c, 96, 11, 4), nn.MaxPool2d(2),
        *conv(96, 256, 5), nn.MaxPool2d(2),
        *conv(256, 512, 3, 1, 1), *conv(512, 1024, 3, 1, 1), *conv(1024, 1024, 3, 1, 1), nn.MaxPool2d(2),
        nn.Flatten(), *dense([features, *units, classes]),
    )  # fmt: skip


def vgg(plan: str, c: int, classes: int, units: tuple[int, int]) -> nn.Module:
    """Convolutions as planned ("M" is a pooling), and three dense layers."""
    layers: list[nn.Module] = []
    for entry in plan.split():
        if entry == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += conv(c, int(entry), 3, 1, 1)
            c = int(entry)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *dense([25088, *units, classes]))


def vgg11(c: int, classes: int, units: tuple[int, int]) -> nn.Module:
    """vgg11 of the zoo: channels c of the images, and the number of classes."""
    return vgg("64 M 128 M 256 256 M 512 512 M 512 512 M", c, classes, units)


def vgg16(c: int, classes: int, units: tuple[int, int]) -> nn.Module:
    """vgg16 of the zoo: channels c of the images, and the number of classes."""
    return vgg("64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M", c, classes, units)


def basic(c: int, f: int, stride: int) -> tuple[nn.Module, int]:
    """Main path of a basic residual block, and its channels."""
    return nn.Sequential(conv_bn(c, f, 3, stride), conv_bn(f, f, 3, after=None)), f


def bottleneck(c: int, f: int, stride: int) -> tuple[nn.Module, int]:
    """Main path of a bottleneck block, and its channels."""
    return nn.Sequential(conv_bn(c, f, 1), conv_bn(f, f, 3, stride), conv_bn(f, 4 * f, 1, after=None)), 4 * f


Block = Callable[[int, int, int], tuple[nn.Module, int]]


def resnet(block: Block, depths: list[int], c: int, classes: int) -> nn.Module:
    """A residual network of blocks of one kind."""
    layers: list[nn.Module] = [conv_bn(c, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for f, depth, first in zip((64, 128, 256, 512), depths, (1, 2, 2, 2), strict=True):
        for i in range(depth):
            stride = first if i == 0 else 1
            main, channels = block(c, f, stride)
            keep = stride == 1 and channels == c
            shortcut = nn.Identity() if keep else conv_bn(c, channels, 1, stride, after=None)
            layers.append(Residual(main, shortcut, nn.ReLU()))
            c = channels
    return nn.Sequential(*layers, *pooled(), nn.Linear(c, classes))


def resnet9(c: int, classes: int, features: int = 128) -> nn.Module:
    """resnet9 of the zoo: channels c of the images, the number of classes, and that of features that are flattened."""

    def conv(c: int, f: int, k: int, stride: int) -> nn.Module:
        return conv_bn(c, f, k, stride, bias=True)

    def residual(f: int) -> nn.Module:
        return Residual(nn.Sequential(conv(f, f, 3, 1), conv(f, f, 3, 1)), nn.Identity(), nn.Identity())

    return nn.Sequential(
        conv(c, 16, 7, 4), conv(16, 32, 3, 2), residual(32),
        conv(32, 64, 3, 2), conv(64, 128, 3, 2), residual(128),
        nn.Flatten(), *dense([features, 128, classes]),
    )  # fmt: skip


def resnet18(c: int, classes: int) -> nn.Module:
    """resnet18 of the zoo: channels c of the images, and the number of classes."""
    return resnet(basic, [2, 2, 2, 2], c, classes)


def resnet34(c: int, classes: int) -> nn.Module:
    """resnet34 of the zoo: channels c of the images, and the number of classes."""
    return resnet(basic, [3, 4, 6, 3], c, classes)


def resnet50(c: int, classes: int) -> nn.Module:
    """resnet50 of the zoo: channels c of the images, and the number of classes."""
    return resnet(bottleneck, [3, 4, 6, 3], c, classes)


def inception(c: int, f1: int, r3: int, f3: int, r5: int, f5: int, fp: int) -> nn.Module:
    """The four branches of an inception module."""
    return Branches(
        conv_bn(c, f1, 1, eps=1e-3),
        nn.Sequential(conv_bn(c, r3, 1, eps=1e-3), conv_bn(r3, f3, 3, eps=1e-3)),
        nn.Sequential(conv_bn(c, r5, 1, eps=1e-3), conv_bn(r5, f5, 3, eps=1e-3)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), conv_bn(c, fp, 1, eps=1e-3)),
    )


def googlenet(c: int, classes: int) -> nn.Module:
    """googlenet of the zoo: channels c of the images, and the number of classes."""
    return nn.Sequential(
        conv_bn(c, 64, 7, 2, eps=1e-3), nn.MaxPool2d(3, 2, ceil_mode=True),
        conv_bn(64, 64, 1, eps=1e-3), conv_bn(64, 192, 3, eps=1e-3), nn.MaxPool2d(3, 2, ceil_mode=True),
        inception(192, 64, 96, 128, 16, 32, 32),
        inception(256, 128, 128, 192, 32, 96, 64), nn.MaxPool2d(3, 2, ceil_mode=True),
        inception(480, 192, 96, 208, 16, 48, 64),
        inception(512, 160, 112, 224, 24, 64, 64),
        inception(512, 128, 128, 256, 24, 64, 64),
        inception(512, 112, 144, 288, 32, 64, 64),
        inception(528, 256, 160, 320, 32, 128, 128), nn.MaxPool2d(2, 2, ceil_mode=True),
        inception(832, 256, 160, 320, 32, 128, 128),
        inception(832, 384, 192, 384, 48, 128, 128),
        *pooled(), nn.Linear(1024, classes),
    )  # fmt: skip


def mobilenet_v2(c: int, classes: int) -> nn.Module:
    """mobilenet_v2 of the zoo: channels c of the images, and the number of classes."""
    layers: list[nn.Module] = [conv_bn(c, 32, 3, 2, after=nn.ReLU6)]
    c = 32
    plan = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for t, f, depth, first in plan:
        for i in range(depth):
            stride, hidden = first if i == 0 else 1, c * t
            expand = [conv_bn(c, hidden, 1, after=nn.ReLU6)] if t != 1 else []
            depthwise = conv_bn(hidden, hidden, 3, stride, groups=hidden, after=nn.ReLU6)
            main = nn.Sequential(*expand, depthwise, conv_bn(hidden, f, 1, after=None))
            layers.append(Residual(main, nn.Identity(), nn.Identity()) if stride == 1 and c == f else main)
            c = f
    return nn.Sequential(*layers, conv_bn(c, 1280, 1, after=nn.ReLU6), *pooled(), nn.Linear(1280, classes))


def fire(c: int, squeeze: int, expand: int) -> nn.Module:
    """A fire module: squeeze, then two expansions side by side."""
    wide = Branches(nn.Sequential(*conv(squeeze, expand, 1)), nn.Sequential(*conv(squeeze, expand, 3, 1, 1)))
    return nn.Sequential(*conv(c, squeeze, 1), wide)


def squeezenet1_1(c: int, classes: int) -> nn.Module:
    """squeezenet1_1 of the zoo: channels c of the images, and the number of classes."""
    return nn.Sequential(
        *conv(c, 64, 3, 2), nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(64, 16, 64), fire(128, 16, 64), nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(128, 32, 128), fire(256, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256),
        *conv(512, classes, 1), *pooled(),
    )  # fmt: skip
