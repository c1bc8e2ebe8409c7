"""Every setting is explained, once."""

from collections import Counter

from fedmix.experiment import explained, spec


def test_every_setting_has_an_explanation() -> None:
    found = Counter((e.path, e.of) for e in explained.explanations())
    assert found == Counter((path, of) for path, _, _, of in spec.settings())
    assert max(found.values()) == 1


def test_only_settings_are_explained() -> None:
    known = {e.path for e in explained.explanations()}
    known |= {f"{e.of}.{e.path.rpartition('.')[2]}" for e in explained.explanations()}
    assert explained.SAYS.keys() <= known


def test_every_section_is_introduced() -> None:
    assert explained.SECTIONS.keys() == {e.section for e in explained.explanations()}


def test_types_and_defaults_are_words() -> None:
    said = {(e.path, e.of): (e.kind, e.default) for e in explained.explanations()}
    assert said["rounds", ""] == ("integer", "40")
    assert said["model.widths", "vgg"] == ("list of integers", "[32, 64, 128, 128, 256, 256]")
    assert said["data.alpha", "digits"] == ("number or `none`", "none")
    assert said["engine.precision", ""][0] == "`tf32`, `float32` or `bf16`"
    assert said["data.augment", "cifar10"] == ("true or false", "true")
