"""Look for bytes that break a reader, guided by coverage.

Not part of the tests: atheris has to be installed first.

    pip install atheris
    python -m tests.fuzz.search toml -runs=100000 build/fuzz/toml tests/fuzz/corpus/toml

New inputs go to the first folder. One that breaks is written to crash-…: mend the reader, and put
the file, made small, into tests/fuzz/corpus, whose files are tests.
"""

import sys


def main() -> None:
    """Fuzz the target that the first argument names; the others are libFuzzer's."""
    import atheris

    with atheris.instrument_imports(include=["fedmix", "tomllib", "json"]):
        from tests.fuzz.targets import TARGETS, hold

    name = sys.argv.pop(1)
    if name not in TARGETS:
        sys.exit(f"no target {name!r}; choose among {', '.join(TARGETS)}")

    def once(data: bytes) -> None:
        hold(name, data)

    atheris.Setup(sys.argv, once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
