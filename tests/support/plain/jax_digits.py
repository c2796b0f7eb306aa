"""Train a network on handwritten digits with JAX and optax, in one process."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

EPOCHS, BATCH = 15, 32


def load():
    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def build(sizes=(64, 128, 10)):
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    return [
        {"weights": jax.random.normal(key, (fan_in, fan_out)) * (2 / fan_in) ** 0.5, "biases": jnp.zeros(fan_out)}
        for key, fan_in, fan_out in zip(keys, sizes, sizes[1:], strict=False)
    ]


def predict(params, images):
    for layer in params[:-1]:
        images = jax.nn.relu(images @ layer["weights"] + layer["biases"])
    return images @ params[-1]["weights"] + params[-1]["biases"]


def loss_of(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, images), labels).mean()


def main():
    (images, labels), (test_images, test_labels) = load()
    steps = len(images) // BATCH
    optimizer = optax.adamw(0.002)
    params = build()
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, images, labels):
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    shuffled = np.random.default_rng(0)
    for epoch in range(EPOCHS):
        order = shuffled.permutation(len(images))
        losses = []
        for batch in np.split(order[: steps * BATCH], steps):
            params, state, loss = step(params, state, images[batch], labels[batch])
            losses.append(loss)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")

    accuracy = float(np.mean(np.argmax(predict(params, test_images), axis=1) == test_labels))
    print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
