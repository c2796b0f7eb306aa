"""k-means with NumPy alone, on one worker or on many: every worker has a part of the points.

    farandole run -np 4 python examples/numpy_kmeans.py
    python examples/numpy_kmeans.py

In each round a worker assigns its own points to the nearest centres, and the workers add up, for each centre, how many
points it has and their sum. All workers then have the same new centres, bit by bit; and the same as one worker has, but
for the order in which the points are added up.
"""

from __future__ import annotations

import argparse
import hashlib
import time

import numpy as np

import farandole.numpy as hvd


def all_points(count: int, dimensions: int, clusters: int, seed: int) -> np.ndarray:
    """Return points around so many centres, the same for the same seed."""
    noise = np.random.default_rng(seed)
    truth = noise.uniform(-10, 10, size=(clusters, dimensions))
    return truth[noise.integers(clusters, size=count)] + noise.normal(size=(count, dimensions))


def nearest(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the number of each point's nearest centre, and the sum of the squared distances to it."""
    distances = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)
    return distances.argmin(1), float(distances.min(1).sum())


def main() -> None:
    """Find the centres and print how well they fit."""
    parser = argparse.ArgumentParser(description="k-means with NumPy, on one worker or on many.")
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--dimensions", type=int, default=16)
    parser.add_argument("--clusters", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    hvd.init()
    everything = all_points(options.points, options.dimensions, options.clusters, options.seed)
    points = everything[hvd.rank() :: hvd.size()]
    # Rank 0 says where the centres begin; the other ranks only have memory for them.
    centres = np.zeros((options.clusters, options.dimensions))
    if hvd.rank() == 0:
        centres[:] = everything[: options.clusters]
    hvd.broadcast_(centres, root_rank=0)

    began = time.perf_counter()
    for number in range(options.rounds):
        labels, error = nearest(points, centres)
        sums, counts = np.zeros_like(centres), np.bincount(labels, minlength=options.clusters)
        np.add.at(sums, labels, points)
        # The three travel together, although their types differ.
        sums, counts, error = hvd.grouped_allreduce([sums, counts, error], op=hvd.Sum)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        if hvd.rank() == 0:
            print(f"round {number + 1}: mean squared distance {error / options.points:.6f}")
    seconds = time.perf_counter() - began

    fingerprints = hvd.allgather_object(hashlib.sha256(centres.tobytes()).hexdigest())
    assert len(set(fingerprints)) == 1, "the workers have found different centres"
    if hvd.rank() == 0:
        print(f"centres: bit-identical on {hvd.size()} worker(s), sha256 {fingerprints[0][:16]}")
        print(f"speed: {options.points * options.rounds / seconds:.0f} points/s on {hvd.size()} worker(s)")


if __name__ == "__main__":
    main()
