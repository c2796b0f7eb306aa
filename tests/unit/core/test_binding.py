"""The ctypes binding says what the header says: functions, structs, numbers."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.base.request_kind import Kind, Rows
from farandole.errors import LibraryError
from farandole.worker.core import binding
from farandole.worker.core.dtype import OPS, DType, WireForm
from farandole.worker.core.status import Status

HEADER = re.sub(r"/\*.*?\*/", "", (Path(__file__).parents[3] / "native/capi/farandole.h").read_text(), flags=re.DOTALL)
SCALARS = {
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
}
POINTERS = {
    "const char*": ctypes.c_char_p,
    "const farandole_kind_row*": ctypes.POINTER(binding.NativeKindRow),
    "const char* const*": ctypes.POINTER(ctypes.c_char_p),
    "const int64_t*": ctypes.POINTER(ctypes.c_int64),
    "const void*": ctypes.c_void_p,
    "void*": ctypes.c_void_p,
    "const farandole_option*": ctypes.POINTER(binding.NativeOption),
    "farandole_callback": binding.Callback,
}
STRUCTS = {
    "farandole_setting": binding.NativeSetting,
    "farandole_world": binding.NativeWorld,
    "farandole_option": binding.NativeOption,
    "farandole_request": binding.NativeRequest,
    "farandole_kind_row": binding.NativeKindRow,
    "farandole_kind_stats": binding.NativeKindStats,
    "farandole_stats": binding.NativeStats,
    "farandole_event": binding.NativeEvent,
}
# The secret is bytes of a given length, which ctypes passes as it does a string.
AS_STRING = {("farandole_world", "secret")}


def fields_of(body):
    """Return the (name, ctypes type) pairs of a C struct's body."""
    fields = []
    for line in filter(None, (statement.strip() for statement in body.split(";"))):
        kind, names = re.fullmatch(r"((?:const )?\w+(?:\*| const\*|\* const\*)*) (.+)", line).groups()
        for name in names.split(","):
            if (array := re.fullmatch(r"(\w+)\[FARANDOLE_KINDS\]", name.strip())) is not None:
                fields.append((array[1], STRUCTS[kind] * binding.KINDS))
            else:
                fields.append((name.strip(), {**SCALARS, **POINTERS}[kind]))
    return fields


@pytest.mark.parametrize("name", STRUCTS)
def test_struct(name):
    (body,) = re.findall(r"typedef struct \{([^}]*)\} " + name + ";", HEADER)
    wanted = [(field, ctypes.c_char_p if (name, field) in AS_STRING else kind) for field, kind in fields_of(body)]
    found = list(STRUCTS[name]._fields_)
    assert [field for field, _ in found] == [field for field, _ in wanted]
    for (field, kind), (_, other) in zip(found, wanted, strict=True):
        assert kind == other or (kind._type_, kind._length_) == (other._type_, other._length_), field


def test_every_struct_is_bound():
    assert set(re.findall(r"typedef struct \{[^}]*\} (\w+);", HEADER)) == set(STRUCTS)


def test_functions():
    """Every function is bound, with the result and as many arguments as it has."""
    found = re.findall(r"FARANDOLE_API\s+([\w ]+\*?)\s*(farandole_\w+)\(([^)]*)\)", HEADER)
    assert {name for _, name, _ in found} == binding.FUNCTIONS
    results = {**SCALARS, **POINTERS, "void": None}
    for result, name, arguments in found:
        bound_result, bound_arguments = {**binding._BLOCKING, **binding._QUICK}[name]
        assert bound_result == results[result.strip()], name
        count = 0 if arguments.strip() == "void" else arguments.count(",") + 1
        assert len(bound_arguments) == count, name


def enum(name):
    (body,) = re.findall(r"enum " + name + r" \{([^}]*)\}", HEADER)
    return {key: int(value) for key, value in re.findall(r"FARANDOLE_(\w+) = (\d+)", body)}


def test_numbers():
    assert enum("farandole_status") == {status.name: status.value for status in Status}
    assert enum("farandole_dtype") == {dtype.name: dtype.value for dtype in DType}
    assert enum("farandole_kind") == {kind.name: kind.value for kind in Kind}
    assert enum("farandole_rows") == {f"ROWS_{rows.name}": rows.value for rows in Rows}
    assert sorted(enum("farandole_op").values()) == sorted(OPS)
    assert enum("farandole_compression") == {f"COMPRESSION_{form.name}": form.value for form in WireForm}
    assert f"#define FARANDOLE_ABI_VERSION {binding.ABI_VERSION}\n" in HEADER
    assert f"#define FARANDOLE_KINDS {binding.KINDS}\n" in HEADER


def test_kinds_are_described_as_by_the_engine():
    has = {key.removeprefix("HAS_"): bit for key, bit in enum("farandole_has").items()}
    library = binding.load()
    for kind in Kind:
        row = library.farandole_kind_row_of(kind).contents
        is_collective = row.has & has["TENSOR"] and not row.has & has["PEER"]
        assert kind.rows == (row.rows if is_collective else None)
        if is_collective:
            assert kind.function == row.name.decode()
            assert (kind.reduces, kind.has_root) == (bool(row.has & has["REDUCTION"]), bool(row.has & has["ROOT"]))


def test_a_kind_that_does_not_exist_has_no_name():
    assert binding.load().farandole_kind_row_of(len(Kind)).contents.name == b""


def test_a_missing_library_is_answered_with_what_to_do(tmp_path):
    with pytest.raises(LibraryError, match=r"nowhere\.so.*make setup.*FARANDOLE_LIBRARY") as caught:
        binding.load(str(tmp_path / "nowhere.so"))
    assert isinstance(caught.value, ImportError)


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not a library")
    with pytest.raises(LibraryError, match="cannot be loaded"):
        binding.load(str(path))


def test_a_library_of_something_else():
    """Any library that is not ours will do: here, the one that Python's own `_ctypes` lives in."""
    import _ctypes

    with pytest.raises(LibraryError, match="lacks farandole_"):
        binding.load(_ctypes.__file__)


def test_importing_loads_neither_the_library_nor_a_framework():
    """Only init() does; so the control side can use what is in core."""
    script = (
        "import sys; import farandole.worker.core.basics, farandole.worker.core.engine;"
        "maps = open('/proc/self/maps').read();"
        "assert 'libfarandole' not in maps;"
        "assert not {'torch', 'numpy', 'tensorflow', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
