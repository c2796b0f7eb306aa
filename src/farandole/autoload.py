"""The function that torch calls at every `import torch` (entry points `torch.backends`): it registers farandole's
backend.

So a script that calls `dist.init_process_group("farandole")` need not import farandole. The backend is imported when
the first process group is created. No error here may prevent the import of torch.
"""

from __future__ import annotations

import warnings
from typing import Any

NAME = "farandole"


def register_backend() -> None:
    """Register the backend with `torch.distributed`; no-op if this was done, or if this torch has no such package."""
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
