"""Settings of a training, and those that each network has unless the user says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from minicnn.optimizers import OPTIMIZERS
from minicnn.zoo import ALIASES


@dataclass(frozen=True)
class Recipe:
    """Settings of a training by plain gradient descent.

    Attributes:
        batch_size: Samples in a step; None for the whole training set.
        learning_rate: Learning rate.
        momentum: Share of the last step that is kept.
        epochs: Epochs.
        hold_out: Training samples held out for validation; 0 validates on the test set.
        last_batch: What becomes of a last batch that is not full, as in `Model.fit`.
    """

    batch_size: int | None = 64
    learning_rate: float = 0.01
    momentum: float = 0.9
    epochs: int = 5
    hold_out: int = 0
    last_batch: Literal["keep", "drop", "pad"] = "keep"


DEFAULT = Recipe()

# As the studies define them; one step of the study `mlp` is one epoch.
RECIPES = {
    "mlp": Recipe(batch_size=None, learning_rate=0.1, momentum=0.0, epochs=500, hold_out=1000),
    "lenet_3x3": Recipe(batch_size=512, learning_rate=0.01, momentum=0.9, epochs=10, last_batch="pad"),
    "two_convs": Recipe(batch_size=64, learning_rate=0.01, momentum=0.0, epochs=5),
    "resnet18": Recipe(batch_size=128, epochs=1),
    "resnet50": Recipe(batch_size=128, epochs=1),
    "mobilenet_v2": Recipe(batch_size=128, epochs=1),
    "squeezenet1_1": Recipe(batch_size=64, epochs=1),
}
RECIPES |= {alias: RECIPES[name] for alias, name in ALIASES.items()}


def usual_batch(network: str) -> int:
    """Samples in a step as the recipe has them, or as most have where it takes the whole training set."""
    return RECIPES.get(network, DEFAULT).batch_size or DEFAULT.batch_size or 1


@dataclass(frozen=True)
class Settings:
    """A training, as the user asked for it.

    Attributes:
        network: Name in `minicnn.zoo`.
        data: Name in `minicnn.data`.
        data_dir: Folder or file of the data, if named.
        epochs: Epochs.
        batch_size: Samples in a step; None for the whole training set.
        learning_rate: Learning rate.
        momentum: Momentum.
        precision: Precision policy.
        seed: Seed of first weights, shuffles and random layers.
        samples: The most samples of the training set, and of the test set, that are used; None for all.
        hold_out: Training samples held out for validation; 0 validates on the test set.
        last_batch: What becomes of a last batch that is not full.
        optimizer: Name of the optimizer.
        augment: What is done at random to training images: see `minicnn.jobs.job.AUGMENTATIONS`.
        size: Height and width that the images of a folder are resized to.
    """

    network: str
    data: str
    data_dir: str | None
    epochs: int
    batch_size: int | None
    learning_rate: float
    momentum: float
    precision: str
    seed: int
    samples: int | None
    hold_out: int
    last_batch: Literal["keep", "drop", "pad"]
    optimizer: str = "sgd"
    augment: tuple[str, ...] = ()
    size: tuple[int, int] | None = None

    @classmethod
    def resolve(cls, network: str, **options: Any) -> Settings:
        """Settings as given; the network's recipe where None is given for what it knows.

        Recipes are for plain gradient descent: another optimizer has its own learning rate unless one is given.

        Raises:
            ValueError: If momentum is given for another optimizer.
        """
        recipe = dict(vars(RECIPES.get(network, DEFAULT)))
        optimizer = options.get("optimizer", "sgd")
        if optimizer != "sgd":
            if options.get("momentum"):
                raise ValueError(f"Momentum is that of sgd. Received: --momentum with {optimizer}. Leave it out.")
            instance: Any = OPTIMIZERS[optimizer]()  # type: ignore[call-arg]  # each has defaults
            recipe |= {"learning_rate": instance.learning_rate, "momentum": 0.0}
        chosen = {k: recipe[k] if k in recipe and v is None else v for k, v in options.items()}
        return cls(network=network, last_batch=recipe["last_batch"], **chosen)
