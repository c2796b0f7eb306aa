"""The digest by which ranks compare variables."""

from __future__ import annotations

import numpy as np

from farandole.numpy.variables import digest


def test_digest_depends_on_the_bits_of_arrays_of_every_type() -> None:
    arrays = [
        np.ones((3, 2), "float32"),
        np.ones(2, "float16"),
        np.ones(2, "float64"),
        np.ones(2, "complex128"),
        np.ones((), "int8"),
        np.ones(3, "bool"),
        np.ones((4, 4), "float32").T[:, ::2],
        np.empty(0),
    ]
    digests = {digest(arrays)}
    for number, array in enumerate(arrays[:-1]):
        changed = list(arrays)
        changed[number] = np.zeros_like(array)
        digests.add(digest(changed))
    assert len(digests) == len(arrays)
    assert digest(arrays) == digest([array.copy() for array in arrays])
