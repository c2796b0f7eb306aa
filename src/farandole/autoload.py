"""The function that torch calls at every `import torch` (entry points `torch.backends`): it registers our backend.

So a script that asks `dist.init_process_group("farandole")` needs no import of ours. What is behind the name is
imported when the first process group is made. Nothing here may keep torch from being imported.
"""

from __future__ import annotations

import warnings
from typing import Any

NAME = "farandole"


def register_backend() -> None:
    """Make the backend known to `torch.distributed`; no-op if it is already, or if this torch has no such package."""
    try:
        import torch.distributed as dist

        if dist.is_available() and NAME not in dist.Backend.backend_list:
            import torch

            devices = ["cpu"] if torch.version.cuda is None else ["cpu", "cuda"]
            dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices)
    except Exception as error:
        warnings.warn(f"torch.distributed will not know the backend {NAME!r}: {error}", stacklevel=2)


def _create(options: Any, unused: Any) -> Any:
    from farandole.torch.distributed import create

    return create(options, unused)
