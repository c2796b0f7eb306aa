"""Step 3 of 5: evaluate.

    python evaluate.py OUT/data OUT/trained.pt OUT/metrics.json

Reads test.npz and the weights. Writes the share of test images that are recognized, in all and of each digit. Ends with
exit code 1 if the model is not good enough, so that nothing bad is exported.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from digits_model import CLASSES, DigitsModel


def main() -> int:
    """Write the metrics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder that prepare.py has written")
    parser.add_argument("weights", type=Path, help="the file that train.py has written")
    parser.add_argument("metrics", type=Path, help="the file to write")
    parser.add_argument("--goal", type=float, default=0.95, help="the least accuracy that is good enough")
    given = parser.parse_args()

    arrays = np.load(given.data / "test.npz")
    model = DigitsModel()
    model.load_state_dict(torch.load(given.weights, weights_only=True))
    with torch.no_grad():
        answers = model(torch.from_numpy(arrays["images"])).argmax(1).numpy()
    right = answers == arrays["labels"]
    each = {str(digit): round(float(right[arrays["labels"] == digit].mean()), 4) for digit in range(CLASSES)}
    metrics = {"accuracy": round(float(right.mean()), 4), "accuracyOf": each}
    given.metrics.write_text(json.dumps(metrics, indent=2) + "\n")

    print(f"accuracy {metrics['accuracy']:.3f} on {len(right)} images that the model had not seen")
    if metrics["accuracy"] < given.goal:
        print(f"error: that is less than --goal {given.goal}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
