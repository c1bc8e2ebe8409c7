"""Mean-augmented federated learning in PyTorch: FedMix and its relatives.

Names are imported when they are first used, so that the command line starts without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmix import data, exchange, losses, models, presets, report
    from fedmix.errors import BadInput, ClientFailure, Collapsed, DataError, Diverged, FedmixError, FedmixWarning
    from fedmix.exchange import Exchange
    from fedmix.experiment import Experiment
    from fedmix.federation import Federation, Round
    from fedmix.objectives import FedMix, GlobalMix, Hidden, LocalMix, NaiveMix, Objective, Proximal, Supervised
    from fedmix.recording import record
    from fedmix.runs import Run
    from fedmix.training import Training

__version__ = "0.1.0"

_HOME = {
    "errors": ("BadInput", "ClientFailure", "Collapsed", "DataError", "Diverged", "FedmixError", "FedmixWarning"),
    "exchange": ("Exchange",),
    "experiment": ("Experiment",),
    "federation": ("Federation", "Round"),
    "objectives": ("FedMix", "GlobalMix", "Hidden", "LocalMix", "NaiveMix", "Objective", "Proximal", "Supervised"),
    "recording": ("record",),
    "runs": ("Run",),
    "training": ("Training",),
}
_MODULES = ("data", "exchange", "losses", "models", "presets", "report")

__all__ = [
    "BadInput", "ClientFailure", "Collapsed", "DataError", "Diverged", "Exchange", "Experiment", "FedMix", "Federation",
    "FedmixError", "FedmixWarning", "GlobalMix", "Hidden",
    "LocalMix", "NaiveMix", "Objective", "Proximal", "Round", "Run", "Supervised", "Training",
    "data", "exchange", "losses", "models", "presets", "record", "report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    try:
        if name in _MODULES:
            return import_module(f"fedmix.{name}")
        for module, names in _HOME.items():
            if name in names:
                return getattr(import_module(f"fedmix.{module}"), name)
    except ModuleNotFoundError as error:
        said = f"fedmix.{name} needs {error.name}; run: pip install 'fedmix[cli]'"
        raise ModuleNotFoundError(said, name=error.name) from error
    raise AttributeError(f"module 'fedmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
