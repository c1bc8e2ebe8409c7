"""Errors that fedmix raises. Each message says what is wrong, where, and what to do."""

import warnings
from inspect import isclass, isfunction

_python_format = warnings.formatwarning


SERVER = -1  # stands for the server, in the place of a client


class FedmixError(Exception):
    """Base of every error that fedmix raises on purpose."""

    exit_code = 1


class BadInput(FedmixError, ValueError):
    """A setting, an array or a combination of them that cannot work.

    It is raised before anything is run or written.
    """

    exit_code = 2


class DataError(BadInput):
    """Data files are missing, damaged or not what they claim, or the cache cannot be written."""


class Interrupted(FedmixError):
    """The program was asked to stop and did; a run finished its round and wrote a checkpoint."""

    exit_code = 130


class Lost(FedmixError):
    """Another process of the same run is gone or does not answer; the run can be started again."""

    exit_code = 75  # as sysexits.h has it: a failure that may pass


class ClientFailure(FedmixError):
    """A client's local update failed; the message names the round, the client and the step."""

    def __init__(self, round_: int, client: int, step: int, reason: str) -> None:
        self.round, self.client, self.step, self.reason = round_, client, step, reason
        where = "the server step" if client == SERVER else f"client {client}, step {step}"
        super().__init__(f"round {round_}, {where}: {reason}")

    def __reduce__(self) -> tuple[type, tuple[int, int, int, str]]:
        return type(self), (self.round, self.client, self.step, self.reason)


class Diverged(ClientFailure):
    """A client's loss or update, or the weights of the server step, became NaN or infinite.

    The settings are the cause, not the code, the data or the machine.
    """


class Collapsed(FedmixError):
    """A model lost what it had learned and only guesses, although its loss is finite.

    The settings are the cause, as with `Diverged`.
    """

    def __init__(self, round_: int, reason: str) -> None:
        self.round, self.reason = round_, reason
        super().__init__(f"after round {round_} {reason}")

    def __reduce__(self) -> tuple[type, tuple[int, str]]:
        return type(self), (self.round, self.reason)


class FedmixWarning(UserWarning):
    """The program continues, but not exactly as requested."""


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
    """Describe a value for an error message: its type, or its name if it is a class or function."""
    if isclass(value) or isfunction(value):
        return f"the {'class' if isclass(value) else 'function'} {value.__name__}"
    return f"of type {type(value).__name__}"


def first_line(error: BaseException) -> str:
    """First line of another library's error message, or the error's type if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
