"""The `JobService` for jobs of a batch system.

Batch systems forget a job some time after its end. Therefore a record of each job is kept, with its log and its exit
code, in `~/.local/state/farandole/PLACE`, which compute nodes must share with the login node, as home directories are.

The answer to a submission may be lost although the job was accepted. Therefore the record is written before the job is
submitted, with a key that the batch system shows with the job and by which the job is found again. A submission that
was not found for a while counts as not accepted. If it is cancelled, or another one takes its name, it is *withdrawn*:
if it appears after all, its script ends at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from farandole.base.wire.os_text import as_bytes
from farandole.control.agent.command_check import check_script
from farandole.control.batch_systems.programs import Programs
from farandole.control.batch_systems.records import Record, Records
from farandole.control.batch_systems.script import withdrawn_file
from farandole.control.batch_systems.system import BatchSystem, Row
from farandole.control.jobs import refusals
from farandole.control.jobs.errors import Refused, UnknownJob, Unreachable
from farandole.control.jobs.log_lines import follow_file, of_rank
from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobState, JobStatus

# The exit code's file may appear later than the batch system's news that the job is over: home directories are shared.
_EXIT_SECONDS = 5.0
# Batch systems must not be polled too often.
_ASK_SECONDS = 2.0
# A submission whose answer was lost appears within this time, or was not accepted.
_TAKEN_SECONDS = 120.0


class BatchJobs:
    """The jobs of this user on a batch system.

    Args:
        system: the batch system.
        programs: its programs.
        environment: the environment of this process.
    """

    def __init__(self, system: BatchSystem, programs: Programs, environment: Mapping[str, str]) -> None:
        state = environment.get("XDG_STATE_HOME", "")
        root = Path(state if os.path.isabs(state) else os.path.expanduser("~/.local/state"))
        self._records = Records(root / "farandole" / system.place)
        self._path = environment.get("PATH")
        self._system = system
        self._programs = programs

    # --- methods of the service ------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> str:
        """Submit a job."""
        check_script(spec.command, spec.working_directory or os.getcwd())
        self._records.make_folder()
        if not spec.name:
            spec = msgspec.structs.replace(spec, name=self._records.free_name())
        rows = self._rows()  # If this fails, the job was certainly not accepted.
        there = self._records.read(spec.name)
        if there is not None:
            there = self._found(there, rows)
            self._check_over(there, rows)
        key = secrets.token_hex(3)
        wanted, can_be_suspended = spec.workers.replicas, spec.how_suspended != "never"
        record = Record(spec.name, "", spec.command, time.time(), wanted, False, can_be_suspended, key)
        script = self._script(spec, key)
        with self._anew(record, there):
            self._records.write_script(spec.name, as_bytes(script))
            self._hand_in(record)
        return spec.name

    def _hand_in(self, record: Record) -> None:
        """Submit a job's script.

        Raises:
            Refused: the job was not accepted.
            Unreachable: the answer was lost, and the job is not found.
        """
        name, title = record.name, self._system.title
        try:
            number = self._system.submit(self._programs, self._records.file(name, "sh"))
            lost = "the answer names no job"
        except Unreachable as error:
            number, lost = "", error.message
        if number:
            with contextlib.suppress(Refused):  # Without its number, the job is found by its key.
                self._records.write(msgspec.structs.replace(record, id=number))
            return
        with contextlib.suppress(Unreachable):
            if self._found(record, self._rows()).id:
                return
        raise Unreachable(
            f"{lost}: it is not known whether {title} has accepted job {name}",
            f"check with: farandole status {name} --on {self._system.place}; submitted again under this name, "
            "it does not run twice",
        )

    def _check_over(self, record: Record, rows: Mapping[str, Row]) -> None:
        """Raise Refused if a job is not over, so that its name is in use."""
        if self._status(record, rows).state.is_over:
            return
        title = self._system.title
        if record.id:
            said = f"job {record.name} already exists, as {title}'s {record.id}"
            raise Refused(said, "use another name: --name NAME")
        raise Refused(
            f"it is not known yet whether {title} has accepted an earlier submission of job {record.name}",
            f"try again in {_TAKEN_SECONDS / 60:.0f} minutes, or cancel it: farandole cancel {record.name}",
        )

    def preview(self, spec: JobSpec) -> str:
        """Return the batch script. A job gets its key, and its name if it has none, when it is submitted."""
        check_script(spec.command, spec.working_directory or os.getcwd())
        return self._script(spec if spec.name else msgspec.structs.replace(spec, name="job"), "000000")

    def jobs(self) -> Sequence[JobStatus]:
        """Return the jobs that were submitted from here, oldest first."""
        rows = self._rows()
        records = self._records.all()
        until = time.monotonic() + _EXIT_SECONDS
        return [self._status(record, rows, until) for record in sorted(records, key=lambda record: record.created)]

    def status(self, name: str) -> JobStatus:
        """Return the state of a job."""
        return self._status(self._find(name), self._rows())

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the output of the job."""
        self._find(name)
        asked_at = -_ASK_SECONDS

        def is_over() -> bool:
            nonlocal asked_at
            if time.monotonic() < asked_at + _ASK_SECONDS:
                return False
            asked_at = time.monotonic()
            return self.status(name).state.is_over

        return of_rank(follow_file(self._records.file(name, "log"), is_over if follow else None), rank)

    def scale(self, name: str, workers: int) -> None:
        """Change the number of workers before the job runs."""
        record, row = self._accepted(name)
        if row.state not in (JobState.WAITING, JobState.SUSPENDED):
            raise Refused(
                f"job {name} runs: under {self._system.title} it keeps its workers",
                "submit it again with another number",
            )
        refusals.check_workers(name, workers)
        self._system.scale(self._programs, row.id, workers)
        self._records.write(msgspec.structs.replace(record, wanted=workers))

    def cancel(self, name: str) -> None:
        """End a job gracefully. A second call ends it at once."""
        record, row = self._living(name)
        if row is None:
            self._withdraw(record)
            return
        self._system.end(self._programs, row.id, record.cancelled)
        self._records.write(msgspec.structs.replace(record, cancelled=True))

    def suspend(self, name: str) -> None:
        """Hold a waiting job; end a running one, to start again when it is resumed."""
        record, row = self._accepted(name)
        if row.state is JobState.WAITING:
            self._system.hold(self._programs, row.id)
        elif record.can_be_suspended:
            self._system.requeue_held(self._programs, row.id)
        else:
            raise refusals.cannot_be_suspended(name)

    def resume(self, name: str) -> None:
        """Release a job that is held."""
        _, row = self._accepted(name)
        if row.state is not JobState.SUSPENDED:
            raise refusals.is_not_suspended(name, row.state)
        self._system.release(self._programs, row.id)

    def _script(self, spec: JobSpec, key: str) -> str:
        program = shutil.which("farandole", path=self._path) or "farandole"
        log, exit_file = (self._records.file(spec.name, kind) for kind in ("log", "exit"))
        return self._system.script(spec, log, exit_file, program, key)

    # --- stored and reported facts -----------------------------------------------------------------------------------

    def _rows(self) -> Mapping[str, Row]:
        return self._system.rows(self._programs)

    @contextlib.contextmanager
    def _anew(self, record: Record, before: Record | None) -> Iterator[None]:
        """Move the files of an earlier job of this name away; move them back if the new one is certainly not
        accepted."""
        name = record.name
        if before is not None and not before.id:
            self._withdraw(before)
        kept = {self._records.file(name, kind): self._records.aside(name, kind) for kind in ("log", "exit")}
        for path, aside in kept.items():
            aside.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                path.replace(aside)
        self._records.write(record)
        try:
            yield
        except (Refused, OSError):
            for path, aside in kept.items():
                with contextlib.suppress(FileNotFoundError):
                    aside.replace(path)
            if before is not None:
                self._records.write(before)
            else:
                self._records.file(name, "json").unlink()
            raise
        finally:
            for aside in kept.values():
                aside.unlink(missing_ok=True)

    def _found(self, record: Record, rows: Mapping[str, Row]) -> Record:
        """Return the record with the job's number, if it was unknown and the batch system shows the job now."""
        number = next((row.id for row in rows.values() if record.key and row.key == record.key), "")
        if record.id or not number:
            return record
        record = msgspec.structs.replace(record, id=number)
        with contextlib.suppress(Refused):  # Next time, the job is found by its key again.
            self._records.write(record)
        return record

    def _withdraw(self, record: Record) -> None:
        """Ensure that a submission that was not found never runs, even if it appears later."""
        withdrawn_file(self._records.file(record.name, "exit"), record.name, record.key).touch()
        self._records.write(msgspec.structs.replace(record, cancelled=True))

    def _find(self, name: str) -> Record:
        record = self._records.read(name)
        if record is None:
            raise UnknownJob(
                f"there is no job {name} that was submitted to {self._system.title} from here",
                f"farandole jobs --on {self._system.place}",
            )
        return record

    def _living(self, name: str) -> tuple[Record, Row | None]:
        """Return a job that is not over; its row is None while it is not known whether it was accepted."""
        rows = self._rows()
        record = self._found(self._find(name), rows)
        status = self._status(record, rows)
        if status.state.is_over:
            raise refusals.is_over(name, status.state)
        return record, rows.get(record.id)

    def _accepted(self, name: str) -> tuple[Record, Row]:
        """Return a job that is not over and that the batch system knows."""
        record, row = self._living(name)
        if row is None:
            raise Refused(
                f"it is not known yet whether {self._system.title} has accepted job {name}",
                f"try again in {_TAKEN_SECONDS / 60:.0f} minutes",
            )
        return record, row

    def _status(self, record: Record, rows: Mapping[str, Row], until: float | None = None) -> JobStatus:
        """Return the state of a job; `until` is the time until which to wait for its exit code, on the monotonic
        clock."""
        record = self._found(record, rows)
        row = rows.get(record.id)
        if self._may_come_up(record):
            reason = f"the answer to its submission was lost, and {self._system.title} does not show it yet"
            return JobStatus(
                record.name,
                JobState.WAITING,
                self._system.place,
                record.command,
                wanted=record.wanted,
                reason=reason,
                created=record.created,
            )
        if row is None or row.state.is_over:
            return self._ended(record, row, time.monotonic() + _EXIT_SECONDS if until is None else until)
        return JobStatus(
            record.name,
            row.state,
            self._system.place,
            record.command,
            user=row.user,
            queue=row.queue,
            workers=record.wanted if row.state is JobState.RUNNING else 0,
            wanted=record.wanted,
            reason=row.reason,
            created=record.created,
            hosts=(row.hosts,) if row.hosts else (),
        )

    def _may_come_up(self, record: Record) -> bool:
        """Return whether a job has not been found yet but may have been accepted."""
        waits = not record.id and not record.cancelled and time.time() < record.created + _TAKEN_SECONDS
        return waits and _read_end(self._records.file(record.name, "exit")) is None

    def _ended(self, record: Record, row: Row | None, until: float) -> JobStatus:
        """Return how a job has ended, from the file that its script wrote or from the batch system's report."""
        place, title = self._system.place, self._system.title
        status = JobStatus(
            record.name, JobState.FAILED, place, record.command, created=record.created, wanted=record.wanted
        )
        exit_file = self._records.file(record.name, "exit")
        succeeded = row is not None and row.state is JobState.SUCCEEDED
        while (end := _read_end(exit_file)) is None and succeeded and time.monotonic() < until:
            time.sleep(0.1)
        if end is None and succeeded:
            return msgspec.structs.replace(
                status, state=JobState.SUCCEEDED, exit_code=0
            )  # A script ends with its job's code.
        if end is not None:
            code, finished = end
            state = JobState.SUCCEEDED if code == 0 else JobState.CANCELLED if record.cancelled else JobState.FAILED
            said = "" if state is JobState.SUCCEEDED else f"it exited with code {code}"
            return msgspec.structs.replace(status, state=state, exit_code=code, reason=said, finished=finished)
        if record.cancelled or (row is not None and row.state is JobState.CANCELLED):
            return msgspec.structs.replace(status, state=JobState.CANCELLED)
        how = f"{title} no longer knows it, and it left no exit code"
        if not record.id:
            how = f"{title} has not accepted it: the answer to its submission was lost, and it did not come up"
        return msgspec.structs.replace(status, reason=how if row is None else f"{title} says {row.word}")


def _read_end(path: Path) -> tuple[int, float] | None:
    """Return the exit code in a file, and when it was written; None if the file is missing or not complete."""
    try:
        return int(path.read_text()), path.stat().st_mtime
    except (OSError, ValueError):
        return None
