"""Step 1 of 5: prepare the data.

    python prepare.py OUT/data

Takes the digits that come with scikit-learn. Writes train.npz and test.npz, each with the arrays `images`, of shape
[n, 8, 8] and with pixels from 0 to 16, and `labels`, from 0 to 9.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TEST_IMAGES = 360


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder to write to")
    given = parser.parse_args()

    digits = load_digits()
    images, labels = digits.images.astype(np.float32), digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    parts = {"test": order[:TEST_IMAGES], "train": order[TEST_IMAGES:]}

    given.data.mkdir(parents=True, exist_ok=True)
    for name, chosen in parts.items():
        np.savez(given.data / f"{name}.npz", images=images[chosen], labels=labels[chosen])
    print(f"{len(parts['train'])} images to train on, {len(parts['test'])} to test with")


if __name__ == "__main__":
    main()
