"""Generates from declarations the functions that users call, and stubs for type checkers."""

from __future__ import annotations

import linecache
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from farandole.worker.collectives.arguments import CONFUSED, check_arguments
from farandole.worker.collectives.declaration import PLAIN, Collective, Form, Parameter, Required
from farandole.worker.collectives.dialect import Dialect
from farandole.worker.collectives.forms import Forms, Runner
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.group import global_process_set

WIDTH = 116


def functions(front: FrontEnd[Any], module: str) -> dict[str, Callable[..., Any]]:
    """Return all functions of a front end by name.

    Args:
        front: the front end to render for.
        module: the module of the functions.
    """
    return functions_of(front, Forms(front).runner, module)


def functions_of(
    dialect: Dialect, runner: Callable[[Collective, Form], Runner], module: str
) -> dict[str, Callable[..., Any]]:
    """Return all functions of a dialect by name.

    Args:
        dialect: their arguments and docstrings.
        runner: a function that returns the function behind a form of a collective.
        module: the module of the functions.
    """
    return {
        form.function(collective.name): render_function(dialect, runner(collective, form), module, collective, form)
        for collective, form in dialect.functions()
    }


# --- functions ---------------------------------------------------------------------------------------------------

# Arguments with a position of their own in the call of a `Runner`; the others are options.
_PLACED = ("name", "compression", "process_set")


def render_function(
    dialect: Dialect, run: Runner, module: str, collective: Collective, form: Form
) -> Callable[..., Any]:
    """Compile one function, as `dataclasses` does: it has a real signature, and is as fast as one written by hand."""
    name, tensor = form.function(collective.name), _tensor_argument(dialect, form)
    parameters = dialect.parameters_of(collective, form)
    declared = collective.parameters_of(form)
    scope: dict[str, Any] = {"_run": run, "_CONFUSED": CONFUSED, "_check": check_arguments}
    for parameter in (*declared, *parameters):
        scope[f"_{parameter.name}"] = _default(dialect, parameter)
    given = {parameter.name for parameter in parameters}
    arguments = [tensor]
    for each in parameters:
        default = scope[f"_{each.name}"]
        arguments.append(each.name if default is Required else f"{each.name}=_{each.name}")
    values = {each.name: each.name if each.name in given else f"_{each.name}" for each in declared}
    passed = [tensor, values["name"], values["process_set"], f"{{{_options(declared, values)}}}"]
    if "compression" in values:
        passed.append(values["compression"])
    passed += [f"{each.name}={each.name}" for each in parameters if each.name not in values]
    checked = ", ".join(f"{each.name!r}: {each.name}" for each in parameters)
    source = (
        f"def {name}({', '.join(arguments)}):\n"
        f"    try:\n        return _run({', '.join(passed)})\n"
        f"    except _CONFUSED:\n        _check({name!r}, {{{checked}}})\n        raise\n"
    )
    # A file of this package, so that a search for the user's line on a stack passes over it.
    file = os.path.join(os.path.dirname(__file__), f"<{module}.{name}>")
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # For tracebacks.
    exec(compile(source, file, "exec"), scope)
    function: Callable[..., Any] = scope[name]
    function.__module__ = module
    function.__doc__ = docstring(collective, form, dialect)
    return function


def _options(parameters: Sequence[Parameter], values: Mapping[str, str]) -> str:
    """Return the items of a dict display: the request's options, and arguments that `Collective.settle` replaces."""
    options = [parameter for parameter in parameters if parameter.name not in _PLACED]
    return ", ".join(f"{(each.option or each.name)!r}: {values[each.name]}" for each in options)


def _tensor_argument(dialect: Dialect, form: Form) -> str:
    return "tensors" if form.grouped else dialect.argument


def _default(front: Dialect, parameter: Parameter) -> Any:
    if parameter.name == "process_set":
        return global_process_set
    return front.no_compression if parameter.name == "compression" else parameter.default


# --- docstrings --------------------------------------------------------------------------------------------------


def docstring(collective: Collective, form: Form, front: Dialect) -> str:
    """Return the docstring of a function."""
    text = _plain_docstring(collective, front) if form == PLAIN else _other_docstring(collective, form, front)
    article = "an" if front.noun[0] in "aeiou" else "a"
    return text.replace("{tensor}", front.noun).replace("{a tensor}", f"{article} {front.noun}")


def _plain_docstring(collective: Collective, front: Dialect) -> str:
    first, _, rest = collective.summary.partition(". ")
    paragraphs = [_wrapped(first.removesuffix(".") + ".")]
    if rest:
        paragraphs.append(_wrapped(rest))
    if front.has_gradients:
        paragraphs.append(_wrapped(f"Differentiable. {collective.differentiable}"))
    parameters = front.parameters_of(collective, PLAIN)
    meanings = [(front.argument, front.requirement), *((each.name, each.meaning) for each in parameters)]
    paragraphs.append("Args:\n" + "\n".join(_wrapped(f"{name}: {meaning}", "    ") for name, meaning in meanings))
    if collective.returned:
        paragraphs.append(f"Returns:\n{_wrapped(collective.returned, '    ', '    ')}")
    paragraphs.append("Raises:\n    ValueError: the call is wrong by itself.\n" + _wrapped(front.failure, "    "))
    return "\n\n".join(paragraphs) + "\n"


def _other_docstring(collective: Collective, form: Form, front: Dialect) -> str:
    if form.later:
        begun = form._replace(later=False).function(collective.name)
        text = f"Begin `{begun}` and return a handle for `synchronize`."
        if front.has_gradients:
            text += " Not differentiable."
        if form.in_place:
            return f"{text}\n"
        inputs = "The {tensor}s" if form.grouped else "The {tensor}"
        return f"{text}\n\n{inputs} must not change until then.\n"
    if form.in_place:
        plain = form._replace(in_place=False).function(collective.name)
        return f"Do what `{plain}` does, in place, and return what was given.\n"
    return f"Do what `{collective.name}` does for {front.several}; they may differ in shape and type.\n"


def _wrapped(text: str, first: str = "", further: str | None = None) -> str:
    indent = first + "    " if further is None and first else further or ""
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False)


# --- stubs -------------------------------------------------------------------------------------------------------


def stub(front: Dialect, tensor: str, accepted: str, imports: str = "", structure: str = "") -> str:
    """Return the text of the stub for a front end's functions, for type checkers and editors.

    Args:
        front: the front end to render for.
        tensor: its type of tensors, as an annotation.
        accepted: the type of an argument that is converted to a tensor and not overwritten.
        imports: the lines that the annotations need.
        structure: the type of a grouped function's argument and result, with its module; "" for a sequence and a list
            of tensors.
    """
    module, _, structure = structure.rpartition(".")
    names = [form.function(collective.name) for collective, form in front.functions()]
    listed = "".join(f'    "{name}",\n' for name in sorted(names))
    body = "\n".join(_stubs(front, tensor, accepted, structure))
    abstract = ", ".join(name for name in ("Iterable", "Sequence") if f"{name}[" in body)
    used = [
        f"from collections.abc import {abstract}\n" if abstract else "",
        "from typing import Any\n",
        f"\n{imports}\n" if imports else "",
        "\n" if module or "ProcessSet" in body else "",
        f"from {module} import {structure}\n" if module else "",
        f"{_SETS}\n" if "ProcessSet" in body else "",
    ]
    head = f"""\
# Rendered from farandole.worker.collectives by `make fix` (tools/stubs.py). Do not edit.
{"".join(used)}
__all__ = [
{listed}]

"""
    return head + body


_SETS = "from farandole.worker.core.group import ProcessSet, global_process_set"


def _stubs(front: Dialect, tensor: str, accepted: str, structure: str) -> Iterator[str]:
    for collective, form in front.functions():
        one = tensor if form.in_place else accepted
        as_structure = structure if form.grouped and not form.later else ""
        given = as_structure or (f"Sequence[{one}]" if form.grouped else one)
        result = as_structure or _stub_result(collective, form, tensor)
        arguments = [f"{_tensor_argument(front, form)}: {given}"]
        for parameter in front.parameters_of(collective, form):
            annotation = parameter.annotation.replace("{Tensor}", accepted)
            arguments.append(f"{parameter.name}: {annotation}{_shown_default(front, parameter)}")
        listed = "".join(f"    {argument},\n" for argument in arguments)
        text = textwrap.indent(f'"""{docstring(collective, form, front).rstrip()}', "    ")
        closing = '\n    """' if "\n" in text else '"""'
        # Editors and the reference show it, because they do not run the code that renders the functions.
        yield (f"def {form.function(collective.name)}(\n{listed}) -> {result}:\n{text}{closing}\n")


def _shown_default(front: Dialect, parameter: Parameter) -> str:
    default = _default(front, parameter)
    if default is Required:
        return ""
    if default is global_process_set:
        return " = global_process_set"
    if isinstance(default, str):
        return f' = "{default}"'
    return f" = {default!r}" if default is None or isinstance(default, (bool, int, float)) else " = ..."


def _stub_result(collective: Collective, form: Form, tensor: str) -> str:
    if form.later:
        return "int"
    if collective.receives_rows and collective.returned:
        return "Any"  # One tensor or two, as its arguments say.
    if form.grouped:
        return f"tuple[{tensor}, ...]" if form.in_place else f"list[{tensor}]"
    return tensor
