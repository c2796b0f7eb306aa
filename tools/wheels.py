"""Build the files of a release, on one machine and without containers: `make wheel`.

    python tools/wheels.py build [--machine x86_64]    # dist/: a wheel for each machine, farandole-horovod, the sources
    python tools/wheels.py test [--machine aarch64]    # the native tests, as the wheels' compiler builds them

The compiler is zig, from PyPI: it contains clang, the C++ library, and the headers and symbols of every glibc, so that
any machine can build a library for an old glibc, or for another processor. A wheel is accepted only if auditwheel
confirms its tag, if its libraries export only farandole's names, and if it is not larger than `LARGEST` bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
BUILD = ROOT / "build" / "wheels"

GLIBC = "2.17"
"""The oldest glibc that the libraries run with: that of manylinux2014."""
LARGEST = 3_000_000
"""Maximum size of a wheel in bytes."""
PROVIDED = "libtensorflow_framework.so.2"
"""The libraries that a plugin uses and no wheel contains, because the framework loads them before the plugin."""
ARM_SYSROOT = "/usr/aarch64-linux-gnu"
"""The path of the glibc in Debian's libc6-arm64-cross, with which programs for aarch64 run under qemu-user."""


class WheelError(Exception):
    """A wheel is not valid, or cannot be built. The message ends with what to do."""


class Machine(NamedTuple):
    """A kind of processor that gets a wheel.

    Attributes:
        name: its name in the kernel and in wheels' tags.
        emulator: the program that runs this machine's programs on another one.
        package: the Debian package of the emulator.
    """

    name: str
    emulator: str
    package: str

    @property
    def zig_target(self) -> str:
        """Return zig's name for this machine with Linux and the oldest glibc."""
        return f"{self.name}-linux-gnu.{GLIBC}"

    @property
    def tag(self) -> str:
        """Return the platform tag that its wheel claims.

        Example:
            >>> MACHINES["aarch64"].tag
            'manylinux_2_17_aarch64'
        """
        return f"manylinux_{GLIBC.replace('.', '_')}_{self.name}"


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("x86_64", "qemu-x86_64", "qemu-user"),
        Machine("aarch64", "qemu-aarch64", "qemu-user"),
    )
}


# --- commands --------------------------------------------------------------------------------------------------------


def run(*command: object, **environment: str) -> str:
    """Run a command in the project's folder and return its output; if it fails, raise WheelError with the output."""
    words = [str(word) for word in command]
    everything = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(words, cwd=ROOT, env=os.environ | environment, check=False, **everything)
    if done.returncode:
        raise WheelError(f"{' '.join(words)} ended with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def find_zig() -> Path:
    """Return the path of zig's program, in its package."""
    try:
        import ziglang
    except ImportError:
        raise WheelError("zig is not installed; `make wheel` installs it, as does `pip install ziglang`") from None
    return Path(ziglang.__file__).with_name("zig")


def commit_seconds() -> str:
    """Return the time of the commit, in seconds since 1970, which is the latest time of files in a wheel."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "315532800"  # 1980, the first year that zip files know


def cmake_definitions(machine: Machine, zig: Path) -> dict[str, str]:
    """Return CMake's definitions for a machine."""
    return {
        "CMAKE_TOOLCHAIN_FILE": str(ROOT / "cmake" / "zig.cmake"),
        "FARANDOLE_ZIG": str(zig),
        "FARANDOLE_ZIG_TARGET": machine.zig_target,
    }


# --- building --------------------------------------------------------------------------------------------------------


def build_wheel(machine: Machine, into: Path) -> Path:
    """Build, check and return the wheel of a machine. Unchanged files are not compiled again."""
    raw = BUILD / machine.name / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    settings = {
        "build-dir": str(BUILD / machine.name / "cmake"),
        "install.strip": "false",
        **{f"cmake.define.{name}": value for name, value in cmake_definitions(machine, find_zig()).items()},
    }
    options = [f"--config-setting={name}={value}" for name, value in settings.items()]
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", raw, *options, ROOT),
        SOURCE_DATE_EPOCH=commit_seconds(),
    )
    (built,) = raw.glob("*.whl")
    # The builder names the machine that it runs on.
    renamed = run(sys.executable, "-m", "wheel", "tags", "--remove", f"--platform-tag=linux_{machine.name}", built)
    named = raw / renamed.split()[-1]
    repaired = raw / "repaired"
    # auditwheel knows no names of other machines than this one, but finds the tag of their wheels; prove() compares it.
    wanted = machine.tag if machine.name == platform.machine() else "auto"
    run(
        *(sys.executable, "-m", "auditwheel", "repair", "--plat", wanted, "--only-plat", "--exclude", PROVIDED),
        *("--wheel-dir", repaired, named),
    )
    (wheel,) = repaired.glob("*.whl")
    prove(wheel, machine)
    into.mkdir(exist_ok=True)
    return Path(shutil.move(wheel, into / wheel.name))


def build_drop_in(into: Path) -> list[Path]:
    """Build farandole-horovod, as a wheel and as sources, and return both."""
    folder = BUILD / "farandole-horovod"
    shutil.rmtree(folder, ignore_errors=True)
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT / "compat" / "horovod"),
        SOURCE_DATE_EPOCH=commit_seconds(),
    )
    return [Path(shutil.move(file, into / file.name)) for file in sorted(folder.iterdir())]


def build_sources(into: Path) -> Path:
    """Build the source distribution and return it: for machines without a wheel, which compile it."""
    folder = BUILD / "sources"
    shutil.rmtree(folder, ignore_errors=True)
    run(
        *(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT),
        SOURCE_DATE_EPOCH=commit_seconds(),
    )
    (built,) = folder.glob("*.tar.gz")
    return Path(shutil.move(built, into / built.name))


# --- proving ---------------------------------------------------------------------------------------------------------


def prove(wheel: Path, machine: Machine) -> None:
    """Raise WheelError unless the wheel matches its name, is for this machine, and is small enough."""
    # auditwheel adds the older name of the same tag.
    *_, python, abi, platforms = wheel.stem.split("-")
    if (python, abi) != ("py3", "none") or machine.tag not in platforms.split("."):
        raise WheelError(f"{wheel.name} lacks the tag py3-none-{machine.tag}; run auditwheel repair to see why")
    shown = run(sys.executable, "-m", "auditwheel", "show", "--json", wheel)
    # `repair` has refused every library from outside but PROVIDED, which `show` cannot be told of: it names the tag of
    # the symbols apart from that of the libraries.
    if json.loads(shown)["sym_tag"] != machine.tag:
        raise WheelError(f"auditwheel does not find {machine.tag} in {wheel.name}; it says:\n{shown}")
    if wheel.stat().st_size > LARGEST:
        raise WheelError(f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {LARGEST:,}: list its files")
    for library, names in exported(wheel).items():
        if foreign := sorted(name for name in names if not name.startswith("farandole_")):
            raise WheelError(f"{library} exports {', '.join(foreign[:5])}, which native/exports.map should keep inside")


def exported(wheel: Path) -> dict[str, list[str]]:
    """Return the names that each library of a wheel exports."""
    from elftools.elf.elffile import ELFFile

    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in (each for each in archive.namelist() if each.endswith(".so")):
            with archive.open(name) as stream:
                symbols = ELFFile(stream).get_section_by_name(".dynsym").iter_symbols()
                defined = (each for each in symbols if each["st_shndx"] != "SHN_UNDEF")
                found[name] = [each.name for each in defined if each.name]
    return found


# --- native tests ----------------------------------------------------------------------------------------------------


def run_tests(machine: Machine, jobs: int) -> None:
    """Build the native tests as the wheel's library is built, and run them: under qemu-user for another machine."""
    folder = BUILD / machine.name / "tests"
    definitions = cmake_definitions(machine, find_zig()) | {"CMAKE_BUILD_TYPE": "Release", "FARANDOLE_TESTS": "ON"}
    definitions["CMAKE_EXE_LINKER_FLAGS"] = str(newer_glibc(machine, folder))
    emulated = machine.name != platform.machine()
    if emulated and (not shutil.which(machine.emulator) or not Path(ARM_SYSROOT).is_dir()):
        raise WheelError(
            f"{machine.emulator} or {ARM_SYSROOT} is missing, and tests for {machine.name} need both; on Debian: "
            f"apt-get install {machine.package} libc6-arm64-cross"
        )
    options = [f"-D{name}={value}" for name, value in definitions.items()]
    run("cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, *options)
    rooms = EMULATED_ROOMS if emulated else ROOMS
    run("cmake", "--build", folder, "--parallel", jobs, "--target", *(f"{room}_test" for room in rooms))
    print(f"{machine.name}: {', '.join(rooms)}")
    if emulated:
        for room in rooms:
            print(f"{room}: {emulate(machine, folder / 'tests' / 'native' / f'{room}_test')}", flush=True)
        return
    labels = f"^({'|'.join(rooms)})$"
    told = run(
        *("ctest", "--test-dir", folder, "--output-on-failure", "--no-tests=error", "--parallel", jobs),
        *("--label-regex", labels, "--label-exclude", "simulation"),
    )
    print("\n".join(line for line in told.splitlines() if "tests passed" in line or "Total Test time" in line))


def emulate(machine: Machine, program: Path) -> str:
    """Run a test program of another machine, and return its line about the number of passed tests.

    Some tests are skipped: they start their program again, which the kernel refuses if no emulator is registered with
    it.
    """
    filters = "--gtest_filter=-Environment.*:Simulation.*"
    told = run(machine.emulator, "-L", ARM_SYSROOT, program, "--gtest_brief=1", filters)
    return next((line for line in told.splitlines() if "PASSED" in line), told)


NEWER_GLIBC = """\
#include <sys/syscall.h>
#include <unistd.h>
int gettid(void) { return syscall(SYS_gettid); }
"""


def newer_glibc(machine: Machine, folder: Path) -> Path:
    """Compile the functions of a newer glibc that only the tests use, and return the object file."""
    folder.mkdir(parents=True, exist_ok=True)
    source, compiled = folder / "newer_glibc.c", folder / "newer_glibc.o"
    source.write_text(NEWER_GLIBC)
    run(find_zig(), "cc", "-target", machine.zig_target, "-c", source, "-o", compiled)
    return compiled


ROOMS = ("base", "reduce", "transport", "collective", "backend", "engine", "plugins")
"""All rooms with tests except capi, whose tests use several processes and need the library beside them."""
EMULATED_ROOMS = ("base", "reduce", "collective")
"""The rooms that depend on the processor: digests, arithmetic, and collectives among threads. An emulator has neither
the timing that tests of connections and deaths rely on, nor the list of locks that the kernel releases when a thread
dies."""


# --- the command -----------------------------------------------------------------------------------------------------


def say(file: Path) -> None:
    print(f"{file.stat().st_size:>9,} bytes  {file.relative_to(ROOT)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build or test; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("build", "test"))
    parser.add_argument("--machine", action="append", choices=sorted(MACHINES), help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    given = parser.parse_args(arguments)
    machines = [MACHINES[name] for name in given.machine or MACHINES]
    try:
        if given.action == "test":
            for machine in machines:
                run_tests(machine, given.jobs)
            return 0
        for machine in machines:
            say(build_wheel(machine, DIST))
        for file in (*build_drop_in(DIST), build_sources(DIST)):
            say(file)
    except WheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
