"""Train a network on handwritten digits with Keras, in one process."""

import keras
import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)
order = np.random.default_rng(0).permutation(len(images))
test, train = order[:360], order[360:]

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(0.002), loss=loss, metrics=["accuracy"])
model.fit(
    images[train],
    digits.target[train],
    batch_size=32,
    epochs=15,
    callbacks=[keras.callbacks.ReduceLROnPlateau(patience=3), keras.callbacks.CSVLogger("log.csv")],
    validation_data=(images[test], digits.target[test]),
    verbose=2,
)
accuracy = model.evaluate(images[test], digits.target[test], verbose=2)[1]
print(f"test accuracy: {accuracy:.4f}")
