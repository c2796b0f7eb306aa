"""Train a network on handwritten digits with a gradient tape of TensorFlow, in one process."""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

EPOCHS = 15


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    digits = load_digits()
    images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def main() -> None:
    train, (test_images, test_labels) = load()
    dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(2000).batch(32)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(0.002)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(EPOCHS):
        losses = [float(step(images, labels)) for images, labels in dataset]
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")

    accuracy = float(np.mean(np.argmax(model(test_images), axis=1) == test_labels))
    print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
