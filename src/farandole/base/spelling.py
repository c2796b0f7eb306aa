"""Hints about words that are not known, such as a mistyped option: the known word that may be meant."""

from __future__ import annotations

from collections.abc import Iterable


def similar(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like another word, or "" if none is.

    A known word that begins with the word comes first. Case, leading dashes, and - or _ make no difference.

    Example:
        >>> similar("imp", ["--json", "--import"]), similar("statsu", ["status"]), similar("xyzzy", ["status"])
        ('--import', 'status', '')
    """
    # Its import takes milliseconds, which a command line without mistakes need not wait for.
    import difflib

    plain = _plain(word)
    names = {_plain(name): name for name in reversed(list(known))}
    begun = [name for name in reversed(names) if len(plain) > 1 and name.startswith(plain)]
    near = begun or difflib.get_close_matches(plain, names, n=1)
    return names[near[0]] if near else ""


def did_you_mean(word: str, known: Iterable[str], after: str = "") -> str:
    """Return a hint about a word that is not known.

    Args:
        word: the word that the user wrote.
        known: the words that would have been right.
        after: a sentence that follows the question, or stands alone if no known word is similar.

    Example:
        >>> did_you_mean("statsu", ["status", "logs"], "See --help.")
        'did you mean status? See --help.'
    """
    near = similar(word, known)
    return " ".join(filter(None, (f"did you mean {near}?" if near else "", after)))


def one_of(word: str, known: Iterable[str]) -> str:
    """Return a hint about a word that is not known, which lists all words that are.

    Example:
        >>> one_of("slow", ["fast", "slower"])
        'did you mean slower? There are fast, slower'
    """
    known = list(known)
    return did_you_mean(word, known, f"There are {', '.join(known)}")


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").strip("-")
