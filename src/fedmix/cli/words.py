"""What the words of an option mean that several commands share."""

from fedmix.core.errors import BadInput
from fedmix.exchange.settings import GroupSize


def listed(text: str) -> list[str]:
    """Words split by commas, each once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def group_size(text: str) -> GroupSize:
    """A word of `--m` as a number of samples, a fraction, or all."""
    try:
        return "all" if text == "all" else float(text) if "." in text else int(text)
    except ValueError:
        raise BadInput(
            f"--m {text!r} is not a number of samples, a fraction of a client's samples, or 'all'"
        ) from None
