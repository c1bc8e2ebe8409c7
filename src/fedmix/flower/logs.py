"""What fedmix says in the processes that Flower starts."""

import logging

log = logging.getLogger("fedmix.flower")


def log_here() -> None:
    """Let this process write to its standard error what fedmix notes, unless others log that."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
