"""What a mistyped name may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known name that is most like a word; empty if none is.

    >>> nearest("fedmx", ["fedavg", "fedmix"])
    'fedmix'
    """
    return next(iter(get_close_matches(word, list(known), 1, 0.6)), "")


def choice(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: what was meant, and what there is.

    >>> choice("fedmx", ["fedavg", "fedmix"]), choice("x", ["fedavg", "fedmix"])
    ('did you mean fedmix? Known are fedavg, fedmix', 'choose one of fedavg, fedmix')
    """
    names = list(known)
    meant = nearest(word, names)
    return (f"did you mean {meant}? Known are " if meant else "choose one of ") + ", ".join(names)
