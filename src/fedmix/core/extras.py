"""Says what to install where a package is missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Imports inside fail with a sentence that names the missing package and its extra.

    Args:
        what: What cannot be used without it.
        extra: The extra of fedmix that holds it.

    Raises:
        ModuleNotFoundError: A package is missing.

    >>> with needed("the picture", "cli"):
    ...     import no_such_package
    Traceback (most recent call last):
    ModuleNotFoundError: the picture needs no_such_package; run: pip install 'fedmix[cli]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        said = f"{what} needs {error.name}; run: pip install 'fedmix[{extra}]'"
        raise ModuleNotFoundError(said, name=error.name) from error
