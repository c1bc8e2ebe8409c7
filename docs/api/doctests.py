"""Puts the examples of docstrings into code blocks that run when they are pasted.

An example sees what its file imports and defines. In a block, the lines that import these names
come first.
"""

import ast
import re
from doctest import DocTestParser
from itertools import accumulate
from typing import Any

from griffe import Alias, Extension, Module, Object

EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:\1\S.*\n?)*", re.MULTILINE)  # up to an empty line


class Doctests(Extension):
    """Rewrites the docstrings of a package once all of it is read."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        rewrite(pkg)


def rewrite(obj: Object) -> None:
    """Rewrite the docstring of an object and of all that it defines."""
    if obj.docstring:
        obj.docstring.value = EXAMPLE.sub(
            lambda found: block(found[0], found[1], obj.module), obj.docstring.value
        )
    for member in obj.members.values():
        if not isinstance(member, Alias):
            rewrite(member)


def block(example: str, indent: str, module: Module) -> str:
    """The code block of an example of a module."""
    code = "".join(part.source for part in DocTestParser().get_examples(example))
    nodes = list(ast.walk(ast.parse(code)))
    made = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    used = {name.id for name in names} - made
    first = [imported(name, module) for name in used if name in module.members]
    lines = [f"{indent}>>> {line}" for line in sorted(first)]
    return "\n".join([f"{indent}```pycon", *lines, example.rstrip(), f"{indent}```", ""])


def imported(name: str, module: Module) -> str:
    """The line that imports what a module calls `name`, from the package that exports it."""
    member = module.members[name]
    home, _, last = (member.target_path if isinstance(member, Alias) else member.path).rpartition(
        "."
    )
    if not home:
        return f"import {last}" if last == name else f"import {last} as {name}"
    if home.startswith(f"{module.package.path}."):
        packages = accumulate(home.split("."), "{}.{}".format)
        exporting = (p for p in packages if last in (module.modules_collection[p].exports or ()))
        home = next(exporting, home)
    return f"from {home} import {last}"
