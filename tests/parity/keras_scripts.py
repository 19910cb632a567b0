"""Scripts as Keras's guides and vision examples have them, small and in our own words.

Each takes the library as `keras`, so that it is what a reader gets who changes the imports, and returns numbers that
must be finite. What a script shows is in its docstring; docs/keras.md says which guides and examples they stand for.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from support.tolerances import SUM

RNG = np.random.default_rng(0)
IMAGES = (RNG.random((24, 16, 16, 1)) * 255).astype("uint8")
COLOURED = RNG.random((16, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(0, 10, 24)


def sequential_model(keras: Any) -> Any:
    """Add, pop, names, weights, and the results of all layers."""
    layers = keras.layers
    model = keras.Sequential(name="my_sequential")
    model.add(keras.Input(shape=(16, 16, 3)))
    model.add(layers.Conv2D(8, 5, strides=2, activation="relu"))
    model.add(layers.Conv2D(8, 3, activation="relu", name="my_intermediate_layer"))
    model.add(layers.MaxPooling2D(2))
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dense(10))
    model.pop()
    assert len(model.layers) == 4
    assert len(model.weights) == 4
    model.summary()
    every = keras.Model(inputs=model.inputs, outputs=[layer.output for layer in model.layers])
    one = keras.Model(inputs=model.inputs, outputs=model.get_layer(name="my_intermediate_layer").output)
    return [np.asarray(y) for y in (*every(COLOURED), one(COLOURED))]


def functional_api(keras: Any) -> Any:
    """Nested models, an ensemble, residual connections, several inputs and outputs, a shared layer."""
    layers = keras.layers
    encoder_input = keras.Input(shape=(16, 16, 1), name="img")
    x = layers.Conv2D(4, 3, activation="relu")(encoder_input)
    x = layers.MaxPooling2D(2)(x)
    encoder = keras.Model(encoder_input, layers.GlobalMaxPooling2D()(x), name="encoder")
    decoder_input = keras.Input(shape=(4,), name="encoded_img")
    x = layers.Reshape((2, 2, 1))(decoder_input)
    x = layers.Conv2DTranspose(4, 3, activation="relu")(x)
    x = layers.UpSampling2D(4)(x)
    decoder = keras.Model(decoder_input, layers.Conv2D(1, 1)(x), name="decoder")
    autoencoder = keras.Model(encoder_input, decoder(encoder(encoder_input)), name="autoencoder")
    autoencoder.compile(optimizer="adam", loss="mse")

    image, extra = keras.Input(shape=(16, 16, 3), name="image"), keras.Input(shape=(5,), name="extra")
    first = layers.Conv2D(8, 3, activation="relu", padding="same")(image)
    second = layers.Conv2D(8, 3, activation="relu", padding="same")(first)
    x = layers.GlobalAveragePooling2D()(layers.add([first, second]))
    shared = layers.Dense(8, activation="relu")
    x = layers.concatenate([shared(x), shared(layers.Dense(8)(extra))])
    priority = layers.Dense(1, name="priority")(x)
    department = layers.Dense(4, name="department")(x)
    model = keras.Model(inputs=[image, extra], outputs=[priority, department])
    model.compile(
        optimizer=keras.optimizers.RMSprop(1e-3),
        loss={
            "priority": keras.losses.BinaryCrossentropy(from_logits=True),
            "department": keras.losses.CategoricalCrossentropy(from_logits=True),
        },
        loss_weights={"priority": 1.0, "department": 0.2},
    )
    history = model.fit(
        {"image": COLOURED, "extra": RNG.random((16, 5))},
        {"priority": RNG.integers(0, 2, (16, 1)), "department": np.eye(4)[RNG.integers(0, 4, 16)]},
        epochs=1, batch_size=8, verbose=0,
    )  # fmt: skip
    models = [keras.Sequential([keras.Input((4,)), layers.Dense(1)]) for _ in range(3)]
    inputs = keras.Input(shape=(4,))
    ensemble = keras.Model(inputs, layers.average([model(inputs) for model in models]))
    decoded = autoencoder.evaluate(IMAGES / 255.0, np.zeros((24, 16, 16, 1)), verbose=0)
    return [history.history["loss"], decoded, ensemble.predict(np.ones((2, 4)), verbose=0)]


def training_and_evaluation(keras: Any) -> Any:
    """Objects and names in compile, weights of classes and samples, schedules, callbacks."""
    inputs = keras.Input(shape=(256,), name="digits")
    x = keras.layers.Dense(16, activation="relu", name="dense_1")(inputs)
    outputs = keras.layers.Dense(10, activation="softmax", name="predictions")(x)
    model = keras.Model(inputs=inputs, outputs=outputs)
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=100, decay_rate=0.96, staircase=True)
    model.compile(
        optimizer=keras.optimizers.RMSprop(learning_rate=rate),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    x_train = IMAGES.reshape(24, 256).astype("float32") / 255
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=1e-2, patience=2, verbose=0)
    keep = keras.callbacks.ModelCheckpoint("mymodel_{epoch}.keras", save_best_only=True, monitor="val_loss", verbose=0)
    history = model.fit(
        x_train, LABELS, batch_size=8, epochs=2, validation_split=0.2, class_weight={5: 2.0}, callbacks=[stop, keep],
        verbose=0,
    )  # fmt: skip
    weights = np.ones(24)
    weights[LABELS == 5] = 2.0
    model.fit(x_train, LABELS, sample_weight=weights, batch_size=8, epochs=1, verbose=0)
    results = model.evaluate(x_train, LABELS, batch_size=8, verbose=0)
    model.compile(optimizer="adam", loss="mean_squared_error", metrics=["mae"])
    model.fit(x_train, keras.utils.to_categorical(LABELS, 10), verbose=0)
    return [history.history["val_loss"], results, model.predict(x_train[:3], verbose=0)]


def layers_by_subclassing(keras: Any) -> Any:
    """Layers of one's own: weights in the constructor or in build, weights that are not trained, layers of layers."""

    class Linear(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def __init__(self, units: int = 8, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.units = units

        def build(self, input_shape: Any) -> None:
            self.w = self.add_weight(shape=(input_shape[-1], self.units), initializer="random_normal", trainable=True)
            self.b = self.add_weight(shape=(self.units,), initializer="random_normal", trainable=True)

        def call(self, inputs: Any) -> Any:
            return keras.ops.matmul(inputs, self.w) + self.b

        def get_config(self) -> Any:
            return {"units": self.units}

    class Block(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear_1, self.linear_2 = Linear(8), Linear(1)
            self.dropout = keras.layers.Dropout(0.5)

        def call(self, inputs: Any, training: Any = None) -> Any:
            x = keras.ops.relu(self.linear_1(inputs))
            return self.linear_2(self.dropout(x, training=training))

    inputs = keras.Input((256,))
    model = keras.Model(inputs, Block()(inputs))
    assert len(model.trainable_weights) == 4
    model.compile("sgd", "mse")
    model.fit(IMAGES.reshape(24, 256) / 255.0, np.ones((24, 1)), verbose=0)
    return model.predict(IMAGES.reshape(24, 256) / 255.0, verbose=0)


def transfer_learning(keras: Any) -> Any:
    """A frozen base below a new head, then fine-tuning."""
    layers = keras.layers
    base = keras.Sequential(
        [keras.Input((16, 16, 3)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D()]
    )
    base.trainable = False
    inputs = keras.Input(shape=(16, 16, 3))
    x = layers.RandomFlip("horizontal")(inputs)
    x = layers.RandomRotation(0.1)(x)
    x = layers.Rescaling(scale=1 / 127.5, offset=-1)(x)
    x = base(x, training=False)
    x = layers.Dropout(0.2)(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    before = base.layers[0].get_weights()[0]
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy()],
    )
    targets = RNG.integers(0, 2, 16)
    model.fit(COLOURED, targets, epochs=1, verbose=0)
    np.testing.assert_array_equal(base.layers[0].get_weights()[0], before)
    base.trainable = True
    model.compile(optimizer=keras.optimizers.Adam(1e-5), loss=keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(COLOURED, targets, epochs=1, verbose=0)
    assert (base.layers[0].get_weights()[0] != before).any()
    return model.predict(COLOURED, verbose=0)


def own_callbacks(keras: Any) -> Any:
    """A callback that stops and puts back the best weights, one that sets the rate, functions as a callback."""
    seen: list[str] = []

    class StopAtMinimum(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_begin(self, logs: Any = None) -> None:
            self.wait, self.best, self.best_weights = 0, np.inf, self.model.get_weights()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            current = logs.get("loss")
            if np.less(current, self.best):
                self.best, self.wait, self.best_weights = current, 0, self.model.get_weights()
            else:
                self.wait += 1
                self.model.stop_training = True
                self.model.set_weights(self.best_weights)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(f"{batch} {sorted(logs)}")

    class Rates(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 / (1 + epoch)

    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.RMSprop(learning_rate=0.1), "mean_squared_error", metrics=["mean_absolute_error"])
    said = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(str(epoch)))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    history = model.fit(
        IMAGES.reshape(24, 256) / 255.0, LABELS, batch_size=12, epochs=3, verbose=0, validation_split=0.5,
        callbacks=[StopAtMinimum(), Rates(), said, halve],
    )  # fmt: skip
    assert seen
    return history.history["loss"]


def saving_and_loading(keras: Any) -> Any:
    """Whole models, weights, configs, clones, classes of one's own."""

    class Scaled(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def __init__(self, factor: float = 2.0, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.factor = factor

        def call(self, inputs: Any) -> Any:
            return inputs * self.factor

        def get_config(self) -> Any:
            return {**super().get_config(), "factor": self.factor}

    inputs = keras.Input(shape=(32,))
    model = keras.Model(inputs, keras.layers.Dense(1)(Scaled(3.0)(inputs)))
    model.compile(optimizer=keras.optimizers.Adam(), loss="mean_squared_error")
    x = RNG.random((16, 32))
    model.fit(x, RNG.random((16, 1)), verbose=0)
    model.save(file := "my_model.keras")
    again = keras.models.load_model(file, custom_objects={"Scaled": Scaled})
    np.testing.assert_allclose(model.predict(x, verbose=0), again.predict(x, verbose=0), rtol=SUM)
    model.save_weights(file := "my.weights.h5")
    clone = keras.models.clone_model(model)
    clone.load_weights(file)
    np.testing.assert_allclose(model.predict(x, verbose=0), clone.predict(x, verbose=0), rtol=SUM)
    dense = keras.layers.Dense(3, activation="relu")
    assert keras.layers.Dense.from_config(dense.get_config()).units == 3
    adam = keras.optimizers.Adam(0.5)
    assert float(keras.optimizers.Adam.from_config(adam.get_config()).learning_rate) == 0.5
    return again.predict(x, verbose=0)


def simple_mnist_convnet(keras: Any) -> Any:
    """The first script of most people."""
    layers = keras.layers
    x_train = IMAGES.astype("float32") / 255
    y_train = keras.utils.to_categorical(LABELS, 10)
    model = keras.Sequential(
        [
            keras.Input(shape=(16, 16, 1)),
            layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.summary()
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    model.fit(x_train, y_train, batch_size=8, epochs=1, validation_split=0.1, verbose=0)
    score = model.evaluate(x_train, y_train, verbose=0)
    assert len(score) == 2
    return score


def classification_from_scratch(keras: Any) -> Any:
    """Augmentation, separable convolutions with residuals, one logit, checkpoints."""
    layers = keras.layers

    def make_model(input_shape: Any, num_classes: int) -> Any:
        inputs = keras.Input(shape=input_shape)
        x = layers.RandomFlip("horizontal")(inputs)
        x = layers.RandomRotation(0.1)(x)
        x = layers.Rescaling(1.0 / 255)(x)
        x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
        previous = x
        for size in (8, 16):
            x = layers.Activation("relu")(x)
            x = layers.SeparableConv2D(size, 3, padding="same")(x)
            x = layers.BatchNormalization()(x)
            x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
            residual = layers.Conv2D(size, 1, strides=2, padding="same")(previous)
            x = layers.add([x, residual])
            previous = x
        x = layers.GlobalAveragePooling2D()(x)
        x = layers.Dropout(0.25)(x)
        units = 1 if num_classes == 2 else num_classes
        return keras.Model(inputs, layers.Dense(units, activation=None)(x))

    model = make_model(input_shape=(16, 16, 3), num_classes=2)
    keras.utils.plot_model(
        model, show_shapes=True
    ) if keras.__name__ == "minicnn.keras" else None  # Keras's needs graphviz
    model.compile(
        optimizer=keras.optimizers.Adam(3e-4),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(name="acc")],
    )
    keep = [keras.callbacks.ModelCheckpoint("save_at_{epoch}.keras")]
    history = model.fit(COLOURED * 255, RNG.integers(0, 2, 16), epochs=1, batch_size=8, callbacks=keep, verbose=0)
    assert os.path.exists("save_at_1.keras" + ".safetensors" * (keras.__name__ == "minicnn.keras"))
    return [history.history["acc"], model.predict(COLOURED, verbose=0)]


def convmixer(keras: Any) -> Any:
    """Patches by a convolution, depthwise convolutions with residuals, AdamW."""
    layers = keras.layers

    def activation_block(x: Any) -> Any:
        return layers.BatchNormalization()(layers.Activation("gelu")(x))

    inputs = keras.Input((16, 16, 3))
    x = layers.Rescaling(scale=1.0 / 255)(inputs)
    x = activation_block(layers.Conv2D(8, kernel_size=2, strides=2)(x))
    for _ in range(2):
        x0 = x
        x = layers.DepthwiseConv2D(kernel_size=3, padding="same")(x)
        x = layers.Add()([activation_block(x), x0])
        x = activation_block(layers.Conv2D(8, kernel_size=1)(x))
    x = layers.GlobalAvgPool2D()(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    optimizer = keras.optimizers.AdamW(learning_rate=0.001, weight_decay=0.0001)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    keep = keras.callbacks.ModelCheckpoint(
        "checkpoint.weights.h5", monitor="val_accuracy", save_best_only=True, save_weights_only=True
    )
    labels = LABELS[:16]
    history = model.fit(COLOURED, labels, epochs=1, validation_data=(COLOURED, labels), callbacks=[keep], verbose=0)
    return history.history["val_loss"]


def denoising_autoencoder(keras: Any) -> Any:
    """Transposed convolutions, images as targets."""
    layers = keras.layers
    inputs = keras.Input(shape=(16, 16, 1))
    x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(inputs)
    x = layers.MaxPooling2D((2, 2), padding="same")(x)
    x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
    autoencoder = keras.Model(inputs, x)
    autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
    images = IMAGES.astype("float32") / 255
    noisy = np.clip(images + 0.4 * RNG.normal(size=images.shape), 0.0, 1.0)
    autoencoder.fit(x=noisy, y=images, epochs=1, batch_size=8, shuffle=True, validation_data=(noisy, images), verbose=0)
    return autoencoder.predict(noisy, verbose=0)


def segmentation(keras: Any) -> Any:
    """A network like a U, a class for each pixel, batches by number."""
    layers = keras.layers

    class Pets(keras.utils.PyDataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            part = slice(8 * index, 8 * index + 8)
            return COLOURED[part], (COLOURED[part, :, :, :1] > 0.5).astype("uint8")

    inputs = keras.Input(shape=(16, 16, 3))
    x = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    previous = x
    for filters in (8,):
        x = layers.SeparableConv2D(filters, 3, padding="same")(layers.Activation("relu")(x))
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = layers.Conv2D(filters, 1, strides=2, padding="same")(previous)
        previous = x = layers.add([x, residual])
    for filters in (8, 4):
        x = layers.Conv2DTranspose(filters, 3, padding="same")(layers.Activation("relu")(x))
        x = layers.UpSampling2D(2)(layers.BatchNormalization()(x))
        residual = layers.Conv2D(filters, 1, padding="same")(layers.UpSampling2D(2)(previous))
        previous = x = layers.add([x, residual])
    model = keras.Model(inputs, layers.Conv2D(3, 3, activation="softmax", padding="same")(x))
    model.compile(optimizer=keras.optimizers.Adam(1e-4), loss="sparse_categorical_crossentropy")
    history = model.fit(Pets(), epochs=1, validation_data=Pets(), verbose=0)
    return [history.history["val_loss"], model.predict(COLOURED, verbose=0)]


def mlp_mixer(keras: Any) -> Any:
    """Dense layers over patches and over channels in turn, with normalisation and residuals."""
    layers = keras.layers
    inputs = keras.Input((16, 16, 3))
    x = layers.Reshape((16, 8))(layers.Conv2D(8, kernel_size=4, strides=4)(inputs))
    for _ in range(2):
        y = layers.Permute((2, 1))(layers.LayerNormalization(epsilon=1e-6)(x))
        y = layers.Dense(16)(layers.Dense(8, activation="gelu")(y))
        x = layers.Add()([x, layers.Permute((2, 1))(y)])
        y = layers.Dense(8)(layers.Dense(8, activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(x)))
        x = layers.Add()([x, layers.Dropout(0.2)(y)])
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate=0.005, weight_decay=0.0001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="acc"),
            keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5-acc"),
        ],
    )
    reduce = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=5)
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=10, restore_best_weights=True)
    history = model.fit(COLOURED, LABELS[:16], validation_split=0.25, callbacks=[reduce, stop], verbose=0)
    return [history.history["top5-acc"], history.history["val_loss"]]


def siamese_network(keras: Any) -> Any:
    """One embedding of two images, a distance by operators, a loss made by a function."""
    layers = keras.layers
    inputs = keras.Input((16, 16, 1))
    x = layers.BatchNormalization()(inputs)
    x = layers.Conv2D(4, (5, 5), activation="tanh")(x)
    x = layers.AveragePooling2D(pool_size=(2, 2))(x)
    embedding = keras.Model(inputs, layers.Dense(10, activation="tanh")(layers.Flatten()(x)))
    one, other = keras.Input((16, 16, 1)), keras.Input((16, 16, 1))
    distance = layers.Subtract()([embedding(one), embedding(other)])
    squared = layers.Multiply()([distance, distance])
    output = layers.Dense(1, activation="sigmoid")(layers.BatchNormalization()(squared))
    siamese = keras.Model(inputs=[one, other], outputs=output)

    def loss(margin: float = 1) -> Any:
        def contrastive_loss(y_true: Any, y_pred: Any) -> Any:
            square = keras.ops.square(keras.ops.maximum(margin - y_pred, 0.0))
            return (1 - y_true) * keras.ops.square(y_pred) + y_true * square

        return contrastive_loss

    siamese.compile(loss=loss(margin=1), optimizer="RMSprop", metrics=["accuracy"])
    images, same = IMAGES.astype("float32") / 255, (LABELS[:12] == LABELS[12:]).astype("float32")
    siamese.fit([images[:12], images[12:]], same, batch_size=4, epochs=1, verbose=0)
    return siamese.predict([images[:12], images[12:]], verbose=0)


def monte_carlo_dropout(keras: Any) -> Any:
    """Predictions that differ, because dropout stays on."""
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
    x = IMAGES.reshape(24, 256).astype("float32") / 255
    drawn = np.stack([np.asarray(model(x, training=True)) for _ in range(4)])
    assert drawn.std(axis=0).max() > 0
    return drawn


SCRIPTS = [
    sequential_model, functional_api, training_and_evaluation, layers_by_subclassing, transfer_learning, own_callbacks,
    saving_and_loading, simple_mnist_convnet, classification_from_scratch, convmixer, denoising_autoencoder,
    segmentation, mlp_mixer, siamese_network, monte_carlo_dropout,
]  # fmt: skip
