"""Takes a state apart into its tensors and a plain part that JSON can hold, and puts it together again.

The plain part is the state with `{"tensor": name}` in the place of each tensor. What JSON cannot hold as it is becomes
an object with one name that says what it is: a mapping (whose keys need not be text), a tuple, bytes, infinity. Two
places that hold the same tensor, such as tied weights, get one name: it is written once, and is one tensor again.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from farandole.errors import InvalidRequestError

# In a file of safetensors, this name is that of the metadata and no tensor's.
_RESERVED = "__metadata__"
# Beyond these, readers of JSON do not agree about what a number is.
_LARGEST_INT = 2**53
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


class Taken:
    """A state that has been taken apart.

    Attributes:
        plain: what JSON can hold.
        tensors: by name, each one once; a name is the path to the tensor, joined with dots.
    """

    def __init__(self, state: Any, identify: Callable[[Any], Hashable | None]) -> None:
        """Take `state` apart; the tensors stay what and where they are.

        Args:
            state: nested mappings, lists and tuples of tensors, numbers, text, bytes and None.
            identify: returns None for what is no tensor, and for two tensors the same if they are the same memory.

        Raises:
            InvalidRequestError: there is something else in it; the message says where.
        """
        self._identify = identify
        self._names: dict[Hashable, str] = {}
        self.tensors: dict[str, Any] = {}
        self.plain = self._take(state, ())

    def _take(self, value: Any, path: tuple[str, ...]) -> Any:
        identity = self._identify(value)
        if identity is not None:
            return {"tensor": self._name(value, identity, path)}
        if isinstance(value, Mapping):
            return self._take_mapping(value, path)
        if isinstance(value, (list, tuple)):
            items = [self._take(item, (*path, str(index))) for index, item in enumerate(value)]
            return {"list" if isinstance(value, list) else "tuple": items}
        return _take_leaf(value, path)

    def _take_mapping(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
        kind = next((name for name, kind in _MAPPINGS.items() if type(value) is kind), "dict")
        items = [[self._take(key, path), self._take(item, (*path, str(key)))] for key, item in value.items()]
        node: dict[str, Any] = {kind: items}
        # Here PyTorch's modules keep the version of each of their parts.
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            node["metadata"] = self._take(metadata, (*path, "metadata"))
        return node

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


def _take_leaf(value: Any, path: tuple[str, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if abs(value) <= _LARGEST_INT else {"int": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode()}
    raise InvalidRequestError(
        f"{'.'.join(path) or 'the state'} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint "
        "cannot hold. It holds tensors, numbers, text, bytes, None, and mappings, lists and tuples of them; make a "
        "tensor or a number of it, or leave it out."
    )


def put_together(plain: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the state again.

    Args:
        plain: what `Taken.plain` was.
        tensors: by name.

    Raises:
        ValueError: this is not the plain part of a state.
    """
    if not isinstance(plain, dict):
        return plain
    kind: str
    content: Any
    kind, content = next(iter(plain.items()), ("nothing", None))
    if kind == "tensor":
        return tensors[content]
    if kind in ("list", "tuple"):
        items = [put_together(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    if kind in _MAPPINGS:
        return _put_mapping(kind, plain, tensors)
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("int", "float"):
        return int(content) if kind == "int" else float(content)
    raise ValueError(f"there is no kind of value called {kind!r}")


def _put_mapping(kind: str, node: dict[str, Any], tensors: Mapping[str, Any]) -> Any:
    mapping = _MAPPINGS[kind]()
    for key, item in node[kind]:
        mapping[put_together(key, tensors)] = put_together(item, tensors)
    if "metadata" in node:
        mapping._metadata = put_together(node["metadata"], tensors)
    return mapping
