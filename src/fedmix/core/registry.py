"""Names for algorithms, data sets, models and server steps, each registered in its own file.

Specs, presets, command line, docs and error messages read these registries. To add something, put a
file into the package and decorate what it defines; no other file changes. Another installed
package adds its own through the entry point group "fedmix", whose entries name modules that
register something when they are imported:

    [project.entry-points.fedmix]
    mine = "my_package.federated"
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from inspect import getdoc
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

from fedmix.core.errors import BadInput, FedmixWarning, first_line

T = TypeVar("T", bound=Callable[..., Any])
PLUGINS = "fedmix"


class Entry(NamedTuple):
    """What is registered under a name: how it is made, a sentence about it, and further facts."""

    make: Callable[..., Any]
    about: str
    facts: Mapping[str, Any]


class Registry(Mapping[str, Callable[..., Any]]):
    """What makes a thing, by its name, in alphabetical order.

    Args:
        kind: what is registered, for messages.
        package: whose modules register something.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._entries: dict[str, Entry] = {}
        self._loaded = False

    def add(self, name: str, about: str = "", **facts: Any) -> Callable[[T], T]:
        """A decorator that registers a class or a function.

        Args:
            name: the name in specs and on the command line.
            about: a sentence about it; by default the first line of its docstring.
            facts: what others need to know, such as a data set's preset.

        Raises:
            BadInput: where something else has this name.
        """

        def registered(make: T) -> T:
            before = self._entries.get(name)
            if before and (before.make.__module__, before.make.__qualname__) != (
                make.__module__, make.__qualname__,
            ):  # fmt: skip
                raise BadInput(
                    f"{self.kind} {name!r} is registered twice, in {before.make.__module__} and "
                    f"{make.__module__}; rename one of them"
                )
            said = about or (getdoc(make) or "").partition("\n")[0]
            self._entries[name] = Entry(make, said, facts)
            return make

        return registered

    def entry(self, name: str) -> Entry:
        """All that is registered under a name."""
        self._load()
        return self._entries[name]

    def entry_now(self, name: str) -> Entry:
        """The same, among what is registered so far; nothing is imported."""
        return self._entries[name]

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self.entry(name).make

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for module in iter_modules(import_module(self.package).__path__):
            import_module(f"{self.package}.{module.name}")
        _load_plugins()


def _load_plugins() -> None:
    """Import what other installed packages register; one that fails is named and left out."""
    for plugin in entry_points(group=PLUGINS):
        try:
            plugin.load()
        except BadInput:
            raise
        except Exception as error:  # whatever the code of another package raises
            warnings.warn(
                f"the package behind {plugin.value!r} could not be loaded and adds nothing "
                f"({type(error).__name__}: {first_line(error)})",
                FedmixWarning,
                stacklevel=2,
            )


DATA = Registry("data set", "fedmix.data")
MODELS = Registry("model", "fedmix.models")
OBJECTIVES = Registry("objective", "fedmix.objectives")
SERVER_STEPS = Registry("server step", "fedmix.server_steps")
ALGORITHMS = Registry("algorithm", "fedmix.objectives")
TRACKERS = Registry("tracker", "fedmix.runs.trackers")
