"""From declarations to the functions that users call, and to stubs that type checkers read."""

from __future__ import annotations

import linecache
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.declaration import PLAIN, Collective, Form, Parameter, Required, Result
from farandole.worker.collectives.forms import Forms
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.group import global_process_set

WIDTH = 116


def functions(front: FrontEnd[Any], module: str) -> dict[str, Callable[..., Any]]:
    """Return all functions of a front end by name.

    Args:
        front: the front end to render for.
        module: the module in which users find them.
    """
    forms = Forms(front)
    return {
        form.function(collective.name): render_function(forms, module, collective, form)
        for collective, form in _functions(front)
    }


def _functions(front: FrontEnd[Any]) -> Iterator[tuple[Collective, Form]]:
    """Give each function of a front end as a collective and a form."""
    for collective in COLLECTIVES.values():
        for form in collective.forms():
            if front.has_in_place or not form.in_place:
                yield collective, form


# --- functions ---------------------------------------------------------------------------------------------------

# Arguments that have a place of their own in the call of a `Runner`; the others are options.
_PLACED = ("name", "compression", "process_set")


def render_function(forms: Forms, module: str, collective: Collective, form: Form) -> Callable[..., Any]:
    """Compile one function, as `dataclasses` does: it has a real signature, and is as fast as one written by hand."""
    name, tensor = form.function(collective.name), _tensor_argument(form)
    parameters = collective.parameters_of(form)
    scope: dict[str, Any] = {"_run": forms.runner(collective, form)}
    arguments = [tensor]
    for parameter in parameters:
        default = _default(forms.front, parameter)
        scope[f"_{parameter.name}"] = default
        arguments.append(parameter.name if default is Required else f"{parameter.name}=_{parameter.name}")
    passed = [tensor, "name", "process_set", f"{{{_options(parameters)}}}"]
    if any(parameter.name == "compression" for parameter in parameters):
        passed.append("compression")
    source = f"def {name}({', '.join(arguments)}):\n    return _run({', '.join(passed)})\n"
    # A file of this package, so that a search for the user's line on a stack passes over it.
    file = os.path.join(os.path.dirname(__file__), f"<{module}.{name}>")
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # For tracebacks.
    exec(compile(source, file, "exec"), scope)
    function: Callable[..., Any] = scope[name]
    function.__module__ = module
    function.__doc__ = docstring(collective, form, forms.front)
    return function


def _options(parameters: Sequence[Parameter]) -> str:
    """Return the items of a dict display: the request's options, and what `Collective.settle` makes options of."""
    options = [parameter for parameter in parameters if parameter.name not in _PLACED]
    return ", ".join(f"{(parameter.option or parameter.name)!r}: {parameter.name}" for parameter in options)


def _tensor_argument(form: Form) -> str:
    return "tensors" if form.grouped else "tensor"


def _default(front: FrontEnd[Any], parameter: Parameter) -> Any:
    if parameter.name == "process_set":
        return global_process_set
    return front.no_compression if parameter.name == "compression" else parameter.default


# --- docstrings --------------------------------------------------------------------------------------------------


def docstring(collective: Collective, form: Form, front: FrontEnd[Any]) -> str:
    """Return the docstring of a function."""
    text = _plain_docstring(collective, front) if form == PLAIN else _other_docstring(collective, form, front)
    article = "an" if front.noun[0] in "aeiou" else "a"
    return text.replace("{tensor}", front.noun).replace("{a tensor}", f"{article} {front.noun}")


def _plain_docstring(collective: Collective, front: FrontEnd[Any]) -> str:
    first, _, rest = collective.summary.partition(". ")
    paragraphs = [_wrapped(first.removesuffix(".") + ".")]
    if rest:
        paragraphs.append(_wrapped(rest))
    if front.has_gradients:
        paragraphs.append(_wrapped(f"Differentiable. {collective.differentiable}"))
    meanings = [("tensor", front.requirement), *((each.name, each.meaning) for each in collective.parameters)]
    paragraphs.append("Args:\n" + "\n".join(_wrapped(f"{name}: {meaning}", "    ") for name, meaning in meanings))
    if collective.returned:
        paragraphs.append(f"Returns:\n{_wrapped(collective.returned, '    ', '    ')}")
    paragraphs.append(
        "Raises:\n    ValueError: the call is wrong by itself.\n"
        "    HorovodInternalError: the ranks' {tensor}s do not fit together, or a worker was lost."
    )
    return "\n\n".join(paragraphs) + "\n"


def _other_docstring(collective: Collective, form: Form, front: FrontEnd[Any]) -> str:
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
    return f"Do what `{collective.name}` does for several {{tensor}}s together; they may differ in shape and type.\n"


def _wrapped(text: str, first: str = "", further: str | None = None) -> str:
    indent = first + "    " if further is None and first else further or ""
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False)


# --- stubs -------------------------------------------------------------------------------------------------------


def stub(front: FrontEnd[Any], tensor: str, accepted: str, imports: str) -> str:
    """Return the text of the stub for a front end's functions, for type checkers and editors.

    Args:
        front: the front end to render for.
        tensor: its type of tensors, as an annotation.
        accepted: the type of what stands for a tensor where nothing is written over it.
        imports: the line that imports the two.
    """
    head = f"""\
# Rendered from farandole.worker.collectives by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from typing import Any

{imports}

from farandole.worker.core.group import ProcessSet, global_process_set

"""
    return head + "\n".join(_stubs(front, tensor, accepted))


def _stubs(front: FrontEnd[Any], tensor: str, accepted: str) -> Iterator[str]:
    for collective, form in _functions(front):
        one = tensor if form.in_place else accepted
        arguments = [f"{_tensor_argument(form)}: {f'Sequence[{one}]' if form.grouped else one}"]
        for parameter in collective.parameters_of(form):
            annotation = parameter.annotation.replace("{Tensor}", accepted)
            arguments.append(f"{parameter.name}: {annotation}{_shown_default(front, parameter)}")
        listed = "".join(f"    {argument},\n" for argument in arguments)
        text = textwrap.indent(f'"""{docstring(collective, form, front).rstrip()}', "    ")
        closing = '\n    """' if "\n" in text else '"""'
        # Editors and the reference show it: they do not run what renders the functions.
        yield (
            f"def {form.function(collective.name)}(\n{listed}) -> {_stub_result(collective, form, tensor)}:\n"
            f"{text}{closing}\n"
        )


def _shown_default(front: FrontEnd[Any], parameter: Parameter) -> str:
    default = _default(front, parameter)
    if default is Required:
        return ""
    if default is global_process_set:
        return " = global_process_set"
    return f" = {default!r}" if default is None or isinstance(default, (bool, int, float, str)) else " = ..."


def _stub_result(collective: Collective, form: Form, tensor: str) -> str:
    if form.later:
        return "int"
    if collective.result is Result.RECEIVED_ROWS and collective.returned:
        return "Any"  # One tensor or two, as its arguments say.
    if form.grouped:
        return f"tuple[{tensor}, ...]" if form.in_place else f"list[{tensor}]"
    return tensor
