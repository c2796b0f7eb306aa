"""The parser that all verbs share: help in two lengths, and usage errors with suggestions.

`--help` shows, in groups and on one screen, what most people need; `--help-all` shows everything.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from farandole.base.spelling import did_you_mean

USAGE_ERROR = 2

Groups = Mapping[str, Sequence[str]]
"""Titles, each with the options (by any of their names) or verbs listed below it."""

# argparse's own texts.
_MISSING = "the following arguments are required: "
_NO_VALUE = ": expected one argument"

_USAGE_INDENT = " " * len("usage: ")
# What a line of usage is broken after: a word, one of several alternatives, or something in brackets as a whole.
_USAGE_PART = re.compile(r"(?:\[[^]]*\]|\([^)]*\)|[^\s|]+\|?)\s*")

_WANTED: Mapping[object, str] = {int: "a whole number", float: "a number"}


class _HelpAll(argparse.Action):
    """Prints the complete help."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_complete_help(), end="")
        parser.exit()


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter that fits usage and prose to the terminal. Examples and indented lines stay as they are."""

    def _format_usage(self, usage: str | None, *others: Any) -> str:
        if usage is not None:
            lines = (line for given in usage.splitlines() for line in _fitted(given, self._width - len(_USAGE_INDENT)))
            usage = f"\n{_USAGE_INDENT}".join(lines)
        return super()._format_usage(usage, *others)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = (textwrap.fill(each, width - len(indent)) if _is_prose(each) else each for each in text.split("\n\n"))
        return textwrap.indent("\n\n".join(filled), indent)


class _ShortFormatter(HelpFormatter):
    """Help formatter that shows each option by one name only."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        value = "" if action.nargs == 0 else f" {self._format_args(action, action.dest.upper())}"
        return f"{action.option_strings[0]}{value}"


class Parser(argparse.ArgumentParser):
    """Parser with short and complete help, which reports usage errors as `error:` and `hint:`.

    Attributes:
        short: the groups that `--help` shows; empty means everything.
        short_epilog: the text below the short help.
        complete: the groups of `--help-all`; empty means argparse's own groups.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        # An abbreviation of two of our options may be an option of the user's command.
        keywords["allow_abbrev"] = False
        super().__init__(*args, **keywords)
        self.short: Groups = {}
        self.short_epilog = ""
        self._words_are_apart = False
        self.complete: Groups = {}
        self._help_all = self.add_argument("--help-all", action=_HelpAll, nargs=0, help=argparse.SUPPRESS)

    def describe(
        self, execute: Callable[[argparse.Namespace], int], *, usage: str, description: str, epilog: str
    ) -> None:
        """Set the function that runs a verb, and the texts of its help."""
        self.usage, self.description, self.epilog = usage, description, epilog
        self.set_defaults(execute=execute, parser=self)

    def shorten(self, groups: Groups, epilog: str = "") -> None:
        """Make `--help` show only these options or verbs, with this text below; `--help-all` still shows everything."""
        self.short, self.short_epilog = groups, epilog
        self._help_all.help = "show all options and exit"

    def format_help(self) -> str:
        """Return what `--help` prints."""
        return self._grouped(self.short, self.short_epilog or self.epilog) if self.short else super().format_help()

    def format_complete_help(self) -> str:
        """Return what `--help-all` prints."""
        return self._grouped(self.complete, self.epilog) if self.complete else super().format_help()

    def _grouped(self, groups: Groups, epilog: str | None) -> str:
        known = self._by_name()
        formatter = _ShortFormatter(self.prog)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, names in groups.items():
            formatter.start_section(title)
            formatter.add_arguments([known[name] for name in names])
            formatter.end_section()
        formatter.add_text(epilog)
        # A blank line between groups would make the help longer than a screen.
        return _without_gaps(formatter.format_help(), groups)

    def _by_name(self) -> dict[str, argparse.Action]:
        known = {name: action for action in self._actions for name in action.option_strings}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                known |= {each.dest: each for each in action._choices_actions}
            elif not action.option_strings:
                known[action.dest] = action
        return known

    def error(self, message: str, hint: str = "") -> NoReturn:
        """Print the error and where to find help, and exit."""
        missing = message.removeprefix(_MISSING)
        if missing != message and self.usage:
            self.exit(USAGE_ERROR, f"error: {missing.partition(', ')[0]} is missing\nhint: {self.usage}\n")
        if message.endswith(_NO_VALUE):
            message = f"{message.removeprefix('argument ').removesuffix(_NO_VALUE)} needs a value"
        hint = f"{hint} Otherwise see" if hint else "see"
        self.exit(USAGE_ERROR, f"error: {message}\nhint: {hint} {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse would ignore that there is no space for help on standard output.
        if file is sys.stdout:
            print(message, end="", flush=True)
        else:
            super()._print_message(message, file)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Print which words are not recognized, with a suggestion, and exit."""
        word = unknown[0].partition("=")[0]
        if word in self._option_string_actions:
            self.error(f"{word} comes before the verb", f"write {self.prog} {' '.join(unknown)} ...")
        # A word that is not an option may be anything.
        meant = did_you_mean(word, self._option_string_actions) if word.startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}", meant)

    def refuse_empty(self, option: str) -> NoReturn:
        """Print that an option has an empty value, and exit."""
        self.exit(
            USAGE_ERROR,
            f"error: the value of {option} is empty\n"
            "hint: give a value, or omit the option; if the value is a variable of the shell, check that it is set\n",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line; options may come before, between and after the words of a list."""
        has_list = any(action.nargs == "*" for action in self._get_positional_actions())
        if self._words_are_apart or not has_list:
            return super().parse_known_args(args, namespace)
        # argparse gives such a list only the words up to the first option, unless options are parsed separately.
        self._words_are_apart = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._words_are_apart = False

    def _parse_optional(self, arg_string: str) -> Any:
        # An option with an optional value does not consume the next word: that is the user's command.
        alone = getattr(self._option_string_actions.get(arg_string), "value_alone", "")
        return super()._parse_optional(f"{arg_string}={alone}" if alone else arg_string)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if not arg_string and action.option_strings and action.default is None:
            # It would count as not given: -H "$HOSTS" without HOSTS would start everything on this machine.
            self.refuse_empty(_name_of(action))
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            wanted = _WANTED.get(action.type)
            if wanted is None:
                raise
            self.error(f"{_name_of(action)} {arg_string}: expected {wanted}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        if len(choices) == 1 and not action.option_strings:
            self.exit(USAGE_ERROR, f"error: unknown action {value!r}\nhint: {self.usage}\n")
        if isinstance(action, argparse._SubParsersAction):
            message = f"unknown {str(action.metavar).lower()} {value!r}"
        else:
            message = f"{_name_of(action)}: {value!r} is not one of {', '.join(choices)}"
        self.error(message, did_you_mean(str(value), choices))


def _fitted(usage: str, width: int) -> list[str]:
    """Return a line of usage as lines of this width. A part that is longer is a line."""
    lines = [""]
    for part in _USAGE_PART.findall(usage):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _is_prose(paragraph: str) -> bool:
    return not paragraph.startswith(("example", " ")) and "\n " not in paragraph


def _name_of(action: argparse.Action) -> str:
    return "/".join(action.option_strings) or str(action.metavar or action.dest)


def _without_gaps(text: str, groups: Groups) -> str:
    """Remove the empty lines between groups."""
    for title in list(groups)[1:]:
        text = text.replace(f"\n\n{title}:\n", f"\n{title}:\n")
    return text
