"""What can go wrong, each with one sentence that says what, where and what to do."""

import warnings
from inspect import isclass, isfunction

_python_format = warnings.formatwarning


class FedmixError(Exception):
    """Base of every error that fedmix raises on purpose."""

    exit_code = 1


class BadInput(FedmixError, ValueError):
    """A setting, an array or a combination of them that cannot work; nothing has been run or
    written.
    """

    exit_code = 2


class DataError(BadInput):
    """Data files that are missing, damaged or not what they claim to be, or a cache that cannot be
    written.
    """


class Interrupted(FedmixError):
    """What ran was asked to stop, and did; a run finished its round and wrote its checkpoint."""

    exit_code = 130


class ClientFailure(FedmixError):
    """A client's local update failed; says in which round, for which client and at which step."""

    def __init__(self, round_: int, client: int, step: int, reason: str) -> None:
        self.round, self.client, self.step, self.reason = round_, client, step, reason
        super().__init__(f"round {round_}, client {client}, step {step}: {reason}")

    def __reduce__(self) -> tuple[type, tuple[int, int, int, str]]:
        return type(self), (self.round, self.client, self.step, self.reason)


class Diverged(ClientFailure):
    """A client's loss or update is no longer finite: the settings are to blame, and not the code,
    the data or the machine.
    """


class Collapsed(FedmixError):
    """What a model had learned is lost and it only guesses, though every number is finite: again
    the settings are to blame.
    """

    def __init__(self, round_: int, reason: str) -> None:
        self.round, self.reason = round_, reason
        super().__init__(f"after round {round_} {reason}")

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return type(self), (self.round, self.reason)


class FedmixWarning(UserWarning):
    """Something that goes on, but not as asked for; one sentence says so."""


def format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Format a FedmixWarning as errors are shown, without file and line; others as Python does.

    It takes the place of `warnings.formatwarning`, and its arguments.
    """
    if issubclass(category, FedmixWarning):
        return f"fedmix: {message}\n"
    return _python_format(message, category, filename, lineno, line)


def described(value: object) -> str:
    """What a value is that should be something else: a class, a function, or of some type."""
    if isclass(value) or isfunction(value):
        return f"the {'class' if isclass(value) else 'function'} {value.__name__}"
    return f"of type {type(value).__name__}"


def first_line(error: BaseException) -> str:
    """What an error of another library says, shortened to its first line; its type if it says
    nothing.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
