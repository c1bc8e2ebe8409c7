"""Mean-augmented federated learning in PyTorch: FedMix and its relatives.

Names are imported when they are first used, so that the command line starts without waiting for
torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedmix.core.extras import needed
from fedmix.core.threads import wait_passively

if sys.platform == "win32":
    raise ImportError("fedmix runs on Linux and macOS; on Windows, use it in WSL")
wait_passively()

if TYPE_CHECKING:
    from fedmix import data, exchange, functional, models, privacy, report
    from fedmix.core import losses
    from fedmix.core.errors import (
        BadInput,
        ClientFailure,
        Collapsed,
        DataError,
        Diverged,
        FedmixError,
        FedmixWarning,
    )
    from fedmix.exchange import Exchange
    from fedmix.experiment import presets
    from fedmix.experiment.spec import Experiment
    from fedmix.objectives import (
        Balance,
        ClientState,
        FedLC,
        FedMix,
        FedRS,
        GlobalMix,
        Hidden,
        LocalMix,
        MeanMix,
        NaiveMix,
        Needs,
        Objective,
        Proximal,
        RestrictedMix,
        Scaffold,
        Supervised,
    )
    from fedmix.runs.record import record
    from fedmix.runs.run import Run
    from fedmix.server_steps import FedAdam, FedAvg, FedAvgM, FedYogi, ServerStep
    from fedmix.training.dpfedavg import DPFedAvg
    from fedmix.training.engines import Sequential, Vectorised
    from fedmix.training.federation import Federation
    from fedmix.training.head import Head
    from fedmix.training.rounds import Round
    from fedmix.training.settings import Training

__version__ = "0.1.0"

_ERRORS = "BadInput ClientFailure Collapsed DataError Diverged FedmixError FedmixWarning"
_OBJECTIVES = (
    "Balance ClientState FedLC FedMix FedRS GlobalMix Hidden LocalMix MeanMix NaiveMix Needs "
    "Objective Proximal RestrictedMix Scaffold Supervised"
)
_HOME = {
    "core.errors": _ERRORS.split(),
    "exchange": ["Exchange"],
    "experiment.spec": ["Experiment"],
    "objectives": _OBJECTIVES.split(),
    "runs.record": ["record"],
    "runs.run": ["Run"],
    "server_steps": ["FedAdam", "FedAvg", "FedAvgM", "FedYogi", "ServerStep"],
    "training.dpfedavg": ["DPFedAvg"],
    "training.engines": ["Sequential", "Vectorised"],
    "training.federation": ["Federation"],
    "training.head": ["Head"],
    "training.rounds": ["Round"],
    "training.settings": ["Training"],
}
_MODULES = {
    "data": "data", "exchange": "exchange", "functional": "functional", "losses": "core.losses",
    "models": "models", "presets": "experiment.presets", "privacy": "privacy", "report": "report",
}  # fmt: skip

__all__ = [
    "BadInput", "Balance", "ClientFailure", "ClientState", "Collapsed", "DPFedAvg", "DataError",
    "Diverged", "Exchange", "Experiment", "FedAdam", "FedAvg", "FedAvgM", "FedLC", "FedMix",
    "FedRS", "FedYogi", "Federation", "FedmixError", "FedmixWarning", "GlobalMix", "Head", "Hidden",
    "LocalMix", "MeanMix", "NaiveMix", "Needs", "Objective", "Proximal", "RestrictedMix", "Round",
    "Run", "Scaffold", "Sequential", "ServerStep", "Supervised", "Training", "Vectorised",
    "data", "exchange", "functional", "losses", "models", "presets", "privacy", "record", "report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    with needed(f"fedmix.{name}", "cli"):
        if name in _MODULES:
            return import_module(f"fedmix.{_MODULES[name]}")
        for module, names in _HOME.items():
            if name in names:
                return getattr(import_module(f"fedmix.{module}"), name)
    raise AttributeError(f"module 'fedmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
