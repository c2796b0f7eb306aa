"""Separates a state into its tensors and a plain part for JSON, and reassembles it.

The plain part is the state with `{"tensor": name}` in place of each tensor. A value that JSON cannot represent becomes
an object whose first name is the kind of value: a mapping (whose keys need not be text), a tuple, bytes, infinity. An
instance of a subclass of these kinds, such as a named tuple, also has the name of its class. To load it, the class must
have been imported: a file never makes a program import or run anything. A tensor that occurs twice, such as tied
weights, has one name: it is written once, and is one tensor again after loading.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from farandole.errors import InvalidRequestError

# In a file of safetensors, this name is that of the metadata and no tensor's.
_RESERVED = "__metadata__"
# Beyond these limits, readers of JSON disagree about numbers.
_LARGEST_INT = 2**53
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_SERIES: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
# The types of values that are not containers; bool comes before int, because it is a subclass.
_LEAVES: tuple[type, ...] = (bool, int, float, complex, str, bytes, bytearray, range)


class Taken:
    """A state that has been separated into plain values and tensors.

    Attributes:
        plain: the part that JSON can represent.
        tensors: the tensors by name, each of them once; a name is the path to the tensor, joined with dots.
    """

    def __init__(self, state: Any, identify: Callable[[Any], Hashable | None]) -> None:
        """Separate `state`; the tensors are not copied.

        Args:
            state: nested mappings, lists, tuples, sets and deques of tensors, arrays, numbers, text, bytes and None.
            identify: a function that returns equal values for tensors that share memory, and None for other values.

        Raises:
            InvalidRequestError: the state contains another value; the message says where.
        """
        self._identify = identify
        self._names: dict[Hashable, str] = {}
        self.tensors: dict[str, Any] = {}
        self.plain = self._take(state, ())

    def _take(self, value: Any, path: tuple[str, ...]) -> Any:
        identity = self._identify(value)
        if identity is not None:
            return {"tensor": self._name(value, identity, path)}
        kind = _kind_of(value)
        if isinstance(value, Mapping):
            node = self._take_mapping(value, kind, path)
        elif isinstance(value, tuple(_SERIES.values())):
            node = self._take_series(value, kind, path)
        elif type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            return _take_array(value, path)
        else:
            return _take_leaf(value, kind, path)
        if type(value) not in (kind, defaultdict):
            node["class"] = _name_of_class(type(value), kind, value, path)
        return node

    def _take_mapping(self, value: Mapping[Any, Any], kind: type, path: tuple[str, ...]) -> dict[str, Any]:
        items = [[self._take(key, path), self._take(item, (*path, str(key)))] for key, item in value.items()]
        node: dict[str, Any] = {kind.__name__: items}
        if type(value) is defaultdict:
            factory = value.default_factory
            node["default"] = None if factory is None else _find_name(factory, path)
        # Here PyTorch's modules keep the version of each of their parts.
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            node["metadata"] = self._take(metadata, (*path, "metadata"))
        return node

    def _take_series(self, value: Any, kind: type, path: tuple[str, ...]) -> dict[str, Any]:
        items = [self._take(item, (*path, str(index))) for index, item in enumerate(value)]
        return {kind.__name__: items, **({"maxlen": value.maxlen} if isinstance(value, deque) else {})}

    def _name(self, tensor: Any, identity: Hashable, path: tuple[str, ...]) -> str:
        if identity not in self._names:
            name = wanted = ".".join(path)
            number = 1
            while name in self.tensors or name == _RESERVED:
                number += 1
                name = f"{wanted}#{number}"
            self.tensors[name] = tensor
            self._names[identity] = name
        return self._names[identity]


def _kind_of(value: Any) -> type:
    """Return the kind of value of which this is an instance or, if there is none, its class."""
    if isinstance(value, Mapping):
        return next((kind for kind in (OrderedDict, Counter) if isinstance(value, kind)), dict)
    kinds = (*_SERIES.values(), *_LEAVES)
    return next((kind for kind in kinds if isinstance(value, kind)), type(value))


def _take_leaf(value: Any, kind: type, path: tuple[str, ...]) -> Any:
    if type(value) is not kind and kind in _LEAVES:
        return {"value": _take_leaf(kind(value), kind, path), "class": _name_of_class(type(value), kind, value, path)}
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if abs(value) <= _LARGEST_INT else {"int": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is complex:
        return {"complex": [_take_leaf(part, float, path) for part in (value.real, value.imag)]}
    if kind is range:
        return {"range": [_take_leaf(part, int, path) for part in (value.start, value.stop, value.step)]}
    if kind in (bytes, bytearray):
        return {kind.__name__: base64.b64encode(value).decode()}
    raise InvalidRequestError(
        f"{'.'.join(path) or 'the state'} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint "
        "cannot hold. It holds tensors, arrays, numbers, text, bytes, None, and mappings, lists, tuples, sets and "
        "deques of them; make a tensor or a number of it, or omit it."
    )


def _take_array(value: Any, path: tuple[str, ...]) -> Any:
    """Convert a NumPy array or number that the front end does not regard as a tensor."""
    is_array = type(value).__name__ == "ndarray"
    if value.dtype.kind in "OV" or not (is_array or value.shape == ()):
        return _take_leaf(value, type(value), path)
    content = [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]
    return {"array" if is_array else "number": content}


def _find_name(found: Any, path: tuple[str, ...]) -> str:
    """Return the name by which `_find_class` finds a class.

    Raises:
        InvalidRequestError: `_find_class` would not find the class.
    """
    name = f"{getattr(found, '__module__', '')}:{getattr(found, '__qualname__', '')}"
    if not isinstance(found, type) or _find_class(name) is not found:
        raise InvalidRequestError(
            f"{'.'.join(path) or 'the state'} depends on {found!r}, which a program cannot find by a name. Use a "
            "class that a module defines, or omit it."
        )
    return name


def _name_of_class(cls: type, kind: type, value: Any, path: tuple[str, ...]) -> str:
    """Return the name of a value's class, a subclass of `kind` whose instances can be made from instances of `kind`.

    Raises:
        InvalidRequestError: they cannot be made so, or the class cannot be found by its name.
    """
    name = _find_name(cls, path)
    try:
        same = _instance(cls, kind(value)) == value
    except (TypeError, ValueError):
        same = False
    if not same:
        raise InvalidRequestError(
            f"{'.'.join(path) or 'the state'} is a {cls.__module__}.{cls.__qualname__}, which cannot be made again "
            f"from its {kind.__name__}. Save a {kind.__name__} instead, or omit it."
        )
    return name


def _find_class(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _instance(cls: type, value: Any) -> Any:
    return cls._make(value) if hasattr(cls, "_make") else cls(value)


def put_together(plain: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the reassembled state.

    Args:
        plain: the value of `Taken.plain`.
        tensors: the tensors by name.

    Raises:
        ValueError: `plain` is not the plain part of a state.
    """
    if not isinstance(plain, dict):
        return plain
    kind: str
    content: Any
    kind, content = next(iter(plain.items()), ("nothing", None))
    if kind == "tensor":
        return tensors[content]
    if kind in _SERIES:
        items = [put_together(item, tensors) for item in content]
        return _as_class(deque(items, plain["maxlen"]) if kind == "deque" else _SERIES[kind](items), plain)
    if kind in _MAPPINGS:
        return _put_mapping(kind, plain, tensors)
    if kind == "value":
        return _as_class(put_together(content, tensors), plain)
    return _put_leaf(kind, content)


def _put_leaf(kind: str, content: Any) -> Any:
    if kind in ("bytes", "bytearray"):
        content = base64.b64decode(content)
        return content if kind == "bytes" else bytearray(content)
    if kind in ("int", "float"):
        return int(content) if kind == "int" else float(content)
    if kind in ("complex", "range"):
        parts = [put_together(part, {}) for part in content]
        return complex(*parts) if kind == "complex" else range(*parts)
    if kind in ("array", "number"):
        return _put_array(kind, *content)
    raise ValueError(f"{kind!r} is not a known kind of value")


def _put_array(kind: str, dtype: str, shape: list[int], content: str) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise ValueError("it holds arrays of NumPy: import numpy before the checkpoint is loaded")
    array = numpy.frombuffer(base64.b64decode(content), dtype).reshape(shape)
    return array.copy() if kind == "array" else array[()]


def _as_class(value: Any, node: Mapping[str, Any]) -> Any:
    """Return the value as an instance of its class.

    Raises:
        ValueError: the class has not been imported, or has changed.
    """
    if "class" not in node:
        return value
    cls = _loaded_class(node["class"])
    if not issubclass(cls, Mapping if isinstance(value, dict) else type(value)):
        raise ValueError(
            f"{node['class']} has changed since this was saved: it does not derive from {type(value).__name__}"
        )
    return _instance(cls, value)


def _loaded_class(name: str) -> type:
    found = _find_class(name)
    if not isinstance(found, type):
        raise ValueError(f"it needs the class {name}: import {name.partition(':')[0]} before the checkpoint is loaded")
    return found


def _put_mapping(kind: str, node: dict[str, Any], tensors: Mapping[str, Any]) -> Any:
    mapping = _MAPPINGS[kind]()
    if "default" in node:
        mapping = defaultdict(None if node["default"] is None else _loaded_class(node["default"]))
    for key, item in node[kind]:
        mapping[put_together(key, tensors)] = put_together(item, tensors)
    mapping = _as_class(mapping, node)
    if "metadata" in node:
        mapping._metadata = put_together(node["metadata"], tensors)
    return mapping
