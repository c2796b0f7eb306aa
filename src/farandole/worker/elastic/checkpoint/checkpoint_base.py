"""Checkpoints of a training's state: a copy between two steps, written while training continues.

`save` copies this rank's share of the tensors to ordinary memory and returns; a thread writes it. No collective is
needed, so training may continue and the world may change meanwhile. The front end defines what a tensor is, how it is
copied, and in which files it is stored.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from farandole.base import external_launcher
from farandole.base.settings.table import Settings
from farandole.errors import CheckpointError, InvalidRequestError
from farandole.worker.core.session import Session
from farandole.worker.core.user_log import tell_user
from farandole.worker.elastic.checkpoint.background_writer import BackgroundWriter
from farandole.worker.elastic.checkpoint.manifest import Manifest, TensorEntry
from farandole.worker.elastic.checkpoint.store import AttemptId, Complete, Search, Store
from farandole.worker.elastic.checkpoint.tensor_files import TensorFiles, Tensors
from farandole.worker.elastic.checkpoint.tree import Taken, put_together
from farandole.worker.elastic.checkpoint.write_attempt import Part
from farandole.worker.elastic.checkpoint.writers import Extent, share_out

PATIENCE_SECONDS = 60.0

Own = TypeVar("Own", bound="CheckpointBase")


class CheckpointBase(ABC):
    """A directory of checkpoints, which a training writes to and resumes from.

    Attributes:
        resume: whether the user wants to start from the checkpoint that `load` finds (`farandole run --resume auto`).
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int = 2,
        format: str = "safetensors",
        *,
        wait_if_busy: bool = False,
        patience: float = PATIENCE_SECONDS,
        run: str | None = None,
        say: Callable[[str, str], None] | None = None,
    ) -> None:
        """Use a directory, which is created when the first checkpoint is written.

        Args:
            directory: the folder of the checkpoints; for more than one host, on a file system that all share.
            every_steps: the number of steps between two checkpoints; `due` is true at its multiples.
            every_seconds: seconds between two checkpoints; `due` is true when they have passed.
            keep: the number of complete checkpoints to keep; older ones are removed once a newer one is complete.
            format: the format of the files with tensors: safetensors or, with PyTorch, dcp, the format of
                `torch.distributed.checkpoint`.
            wait_if_busy: whether `save` waits for a checkpoint that is still being written; otherwise it skips the new
                one.
            patience: seconds that rank 0 waits for other ranks' shards if none of them grows.
            run: a name that distinguishes this job from others that write to the directory: letters and digits; None:
                the launcher's name.
            say: called with a level (info or warning) and a line for the user; None: the line goes to standard error.

        Raises:
            InvalidRequestError: a value is not valid, or the format needs a library that is not installed.
        """
        _check("keep", keep, keep >= 1, "at least 1")
        _check("every_steps", every_steps, every_steps is None or every_steps >= 1, "at least 1")
        _check("every_seconds", every_seconds, every_seconds is None or 0 < every_seconds < math.inf, "above 0")
        _check("patience", patience, 0 < patience < math.inf, "above 0")
        # It becomes a part of a folder's name, which is parsed later.
        _check("run", run, run is None or re.fullmatch(r"\w+", run) is not None, "letters and digits")
        settings = Settings.from_environment()
        self.resume = settings.resume == "auto"
        self._format_name = format
        self._format = self._open_format(format)
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self._wait_if_busy = wait_if_busy
        self._patience = patience
        self._run = _run_of(settings) if run is None else run
        self._say = say or tell_user
        # A script may change its working directory.
        self._store = Store(Path(directory).expanduser().absolute())
        self._background = BackgroundWriter(self._store, keep, self._say)
        self._buffers: dict[str, Any] = {}
        self._saved_at = time.monotonic()

    @classmethod
    def from_settings(cls: type[Own], settings: Settings, *, folder: str = "", **options: Any) -> Own | None:
        """Return the checkpoints that the settings request, or None.

        Args:
            settings: the settings, of which `checkpoint_dir`, `checkpoint_seconds` and `resume` are used.
            folder: the folder in that directory, if there are several trainings.
            options: options of the constructor; without `every_steps` and `every_seconds`, a checkpoint is due after
                `checkpoint_seconds`.
        """
        if settings.checkpoint_dir is None:
            return None
        if options.get("every_steps") is None and options.get("every_seconds") is None:
            options["every_seconds"] = settings.checkpoint_seconds
        checkpoint = cls(Path(settings.checkpoint_dir, folder), **{"run": _run_of(settings), **options})
        checkpoint.resume = settings.resume == "auto"
        return checkpoint

    @classmethod
    def of_next_loop(cls: type[Own], session: Session) -> Own | None:
        """Return the checkpoints that the settings request for the script's next loop of steps, or None.

        Each loop has its own folder; that of the first one is the directory itself.
        """
        number = session.trainings + 1
        return cls.from_settings(session.settings, folder=f"loop-{number}" if number > 1 else "")

    @property
    def directory(self) -> Path:
        """The directory of the checkpoints."""
        return self._store.directory

    # --- writing ----------------------------------------------------------------------------------------------------

    def due(self, step: int) -> bool:
        """Return whether it is time for a checkpoint.

        All ranks must save at the same step. With `every_steps`, the result is the same on all; with `every_seconds`,
        it depends on this process's clock: call this on one rank, and broadcast the result.
        """
        if self._every_steps is not None and step > 0 and step % self._every_steps == 0:
            return True
        return self._every_seconds is not None and time.monotonic() - self._saved_at >= self._every_seconds

    def save(
        self, state: Mapping[str, Any], step: int, *, rank: int, size: int, generation: int = 0, epoch: int = 0
    ) -> bool:
        """Copy this rank's share of the state and begin to write it; all ranks call this at the same step.

        The caller waits only for the copy. Rank 0 reports later errors; earlier checkpoints are not changed.

        Args:
            state: objects with a `state_dict`, tensors, arrays, numbers, text, bytes, and mappings, lists, tuples,
                sets and deques of them; the same on all ranks.
            step: the number of steps taken so far.
            rank: this worker's rank.
            size: the number of workers in the world.
            generation: the generation of the world; an attempt of an earlier one is given up.
            epoch: the epoch, for readers of the manifest.

        Returns:
            Whether it was begun; False if the last one is still being written.

        Raises:
            InvalidRequestError: the state contains a value that cannot be written; the message says where.
        """
        _check("rank", rank, 0 <= rank < size, f"below the size, {size}")
        _check("step", step, step >= 0, "not negative")
        self._saved_at = time.monotonic()
        attempt = AttemptId(self._run, generation, step)
        writers = self._format.writers(size)
        if rank >= writers:
            return True
        if not self._is_free(attempt, rank):
            return False
        taken = Taken({name: self._state_of(value) for name, value in state.items()}, self._identify)
        manifest = Manifest(
            step=step,
            epoch=epoch,
            world=size,
            format=self._format_name,
            files=(),
            tensors=self._entries(taken.tensors, writers),
            plain=taken.plain,
        )
        self._background.start(self._part(attempt, rank, writers, manifest, taken.tensors))
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no checkpoint is being written.

        Returns:
            Whether the last checkpoint was completed, as far as this rank knows. Only rank 0 knows about all shards.
        """
        return self._background.wait(timeout)

    def _is_free(self, attempt: AttemptId, rank: int) -> bool:
        busy = self._background.busy_with(attempt.generation)
        if busy is None:
            return True
        if self._wait_if_busy:
            self._background.wait(None)
            return True
        self._background.skip(attempt, rank, busy)
        return False

    def _part(self, attempt: AttemptId, rank: int, writers: int, manifest: Manifest, tensors: Tensors) -> Part:
        pieces, wait_for_copies = self._snapshot(tensors, manifest.tensors, rank)

        def write(folder: Path) -> tuple[str, ...]:
            return self._format.write(folder, rank, writers, pieces)

        layout = hashlib.sha256(msgspec.json.encode(manifest.tensors)).hexdigest()
        return Part(attempt, rank, writers, manifest, layout, wait_for_copies, write, self._patience)

    def _snapshot(
        self, tensors: Tensors, entries: Mapping[str, TensorEntry], rank: int
    ) -> tuple[dict[str, Any], Callable[[], None]]:
        """Copy this rank's pieces, into the memory of the last copy if they fit, because new memory is slow."""
        sources = {}
        for name, entry in entries.items():
            for piece in entry.pieces:
                if piece.shard == rank:
                    tensor = tensors[name]
                    sources[name] = tensor if len(entry.pieces) == 1 else tensor[piece.begin : piece.end]
        self._buffers, wait_for_copies = self._copied(sources, self._buffers)
        return self._buffers, wait_for_copies

    def _entries(self, tensors: Tensors, writers: int) -> dict[str, TensorEntry]:
        described = {name: self._describe(tensor) for name, tensor in tensors.items()}
        extents = []
        for _, shape, size in described.values():
            rows = shape[0] if shape else 1
            extents.append(Extent(rows, size // max(rows, 1)))
        return {
            name: TensorEntry(dtype, shape, pieces)
            for (name, (dtype, shape, _)), pieces in zip(described.items(), share_out(extents, writers), strict=True)
        }

    # --- reading ----------------------------------------------------------------------------------------------------

    def load(self, into: MutableMapping[str, Any], *, rank: int = 0) -> int | None:
        """Load the newest intact checkpoint, whichever world wrote it.

        Every byte is verified before anything is loaded. A damaged checkpoint is skipped, with a warning that names the
        file.

        Args:
            into: the state that was passed to `save`, or a part of it: objects with a `load_state_dict` load their
                state, tensors get their values in place, and everything else is replaced in this mapping.
            rank: the rank of this worker; only rank 0 prints messages.

        Returns:
            The step at which it was saved; None if there is no checkpoint.

        Raises:
            CheckpointError: all checkpoints are damaged or cannot be read; or the checkpoint lacks an entry, or has
                a tensor of another shape.
        """
        begun = time.monotonic()
        search = self._search()
        if rank == 0:
            for trouble in search.passed_over:
                self._say("warning", f"a checkpoint is skipped: {trouble}")
        if search.found is None:
            if search.passed_over:
                raise CheckpointError(
                    f"none of the checkpoints in {self.directory} can be used: {'; '.join(search.passed_over)}. Put a "
                    "good one there, or move them away to begin anew."
                )
            return None
        self._load(search.found, into)
        if rank == 0:
            self._say("info", _told(search.found, time.monotonic() - begun))
        return search.found.manifest.step

    def _search(self) -> Search:
        try:
            return self._store.latest()
        except OSError as error:
            raise CheckpointError(
                f"the checkpoints in {self.directory} cannot be read: {error.strerror or error}. Check the path and "
                "its permissions."
            ) from error

    def _load(self, found: Complete, into: MutableMapping[str, Any]) -> None:
        manifest = found.manifest
        try:
            tensors = self._open_format(manifest.format).read(found.path, manifest)
            state = put_together(manifest.plain, tensors)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{found.path} is intact, but cannot be read: {error}") from error
        missing = [name for name in into if name not in state]
        if missing:
            raise CheckpointError(
                f"{found.path} has no {', '.join(missing)}; it has {', '.join(state) or 'nothing'}. Ask for what is "
                "there, or move it away to begin anew."
            )
        for name, value in into.items():
            if not self._fits(value, state[name]):
                raise CheckpointError(
                    f"{name} has {self._shape_of(value)} here, and another one in {found.path}. Build the state as it "
                    "was saved, or pass None in its place to get the saved value."
                )
        for name, value in into.items():
            self._put(into, name, value, state[name])

    # --- the framework's tensors -------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def _open_format(name: str) -> TensorFiles:
        """Return the format of this name.

        Raises:
            InvalidRequestError: there is no such format, or it needs a library that is not installed.
        """

    @abstractmethod
    def _state_of(self, value: Any) -> Any:
        """Return the content of a value that is saved: nested mappings, lists, tuples, tensors and numbers."""

    @abstractmethod
    def _identify(self, value: Any) -> Hashable | None:
        """Return a key that is equal only for tensors that share memory; None for a value that is not a tensor.

        Raises:
            InvalidRequestError: such a tensor cannot be saved.
        """

    @abstractmethod
    def _describe(self, tensor: Any) -> tuple[str, tuple[int, ...], int]:
        """Return the name of a tensor's type, its shape, and its size in bytes."""

    @abstractmethod
    def _copied(self, sources: Tensors, before: Tensors) -> tuple[dict[str, Any], Callable[[], None]]:
        """Copy tensors to ordinary memory: to that of the previous copies if they fit.

        Returns:
            The copies, and a function that waits until they are complete, for the thread that writes them. The caller
            may change the tensors at once.
        """

    @abstractmethod
    def _fits(self, target: Any, value: Any) -> bool:
        """Return whether an object can load the saved value."""

    @abstractmethod
    def _shape_of(self, target: Any) -> str:
        """Return a description of the target's shape, for an error."""

    @abstractmethod
    def _put(self, into: MutableMapping[str, Any], name: str, target: Any, value: Any) -> None:
        """Store the saved value: in place, or under its name."""


def _told(found: Complete, seconds: float) -> str:
    manifest = found.manifest
    return (
        f"training resumes at step {manifest.step} with {found.path}, which a world of {manifest.world} wrote "
        f"({manifest.size / 1e6:.1f} MB, {seconds:.1f} s)"
    )


def _run_of(settings: Settings) -> str:
    """Return an id that all workers of a job share and no other job has. It does not reveal the secret."""
    # Before `init`, workers of another launcher have no secret, which is derived from this key.
    placed = None if settings.job or settings.secret else external_launcher.find(os.environ)
    job = settings.job or settings.job_key or ("" if placed is None else placed.job_key)
    return hashlib.sha256(b"farandole checkpoint\n" + job.encode() + settings.secret).hexdigest()[:12]


def _check(name: str, value: Any, holds: bool, expects: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{name}={value} is not valid: it must be {expects}.")
