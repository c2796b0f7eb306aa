"""The model that all steps of the workflow share: which digit does an image of 8 x 8 pixels show?"""

from __future__ import annotations

import torch

PIXELS = (8, 8)
CLASSES = 10


class DigitsModel(torch.nn.Module):
    """Two layers. It takes images as they are, with pixels from 0 to 16: whoever serves it need not scale them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(PIXELS[0] * PIXELS[1], 64)
        self.scores = torch.nn.Linear(64, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score for each class; images have the shape [n, 8, 8]."""
        return self.scores(torch.relu(self.hidden(images.flatten(1) / 16)))
