"""Step 4 of 5: export the model in formats that need no Python and no PyTorch.

    python export.py OUT/trained.pt OUT/export

Writes model.safetensors (the weights alone) and model.onnx (the whole model: input `images` of shape [n, 8, 8], output
`scores`), and compares what ONNX Runtime says with what PyTorch says before it calls the export done.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from digits_model import CLASSES, PIXELS, DigitsModel
from safetensors.torch import save_file


def export_onnx(model: DigitsModel, path: Path) -> None:
    """Write the model as ONNX, for any number of images at once."""
    # The exporter warns of packages that this model does not need, and of its own use of an old name.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
    images = torch.zeros(2, *PIXELS)
    any_number = {"images": {0: torch.export.Dim("n")}}
    torch.onnx.export(
        model,
        (images,),
        path,
        input_names=["images"],
        output_names=["scores"],
        dynamic_shapes=any_number,
        external_data=False,
        verbose=False,
    )


def largest_difference(model: DigitsModel, path: Path) -> float:
    """Return by how much the scores of ONNX Runtime and PyTorch differ, for 5 random images."""
    images = np.random.default_rng(0).uniform(0, 16, (5, *PIXELS)).astype(np.float32)
    (exported,) = onnxruntime.InferenceSession(path).run(["scores"], {"images": images})
    with torch.no_grad():
        return float(np.abs(exported - model(torch.from_numpy(images)).numpy()).max())


def main() -> int:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, help="the file that train.py has written")
    parser.add_argument("folder", type=Path, help="the folder to write to")
    given = parser.parse_args()

    model = DigitsModel().eval()
    model.load_state_dict(torch.load(given.weights, weights_only=True))
    given.folder.mkdir(parents=True, exist_ok=True)
    about = {"input": json.dumps(["n", *PIXELS]), "classes": str(CLASSES)}
    save_file(model.state_dict(), given.folder / "model.safetensors", metadata=about)
    export_onnx(model, given.folder / "model.onnx")

    difference = largest_difference(model, given.folder / "model.onnx")
    print(f"scores of ONNX Runtime and of PyTorch differ by {difference:.1e} at most")
    if difference > 1e-4:
        print("error: the exported model is not the one that was trained", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
