"""Charts as plain SVG: they need no script, take the page's colours, and print as they look.

A unit is about half a pixel, so that whole numbers are exact enough.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
from markupsafe import Markup

from fedmix.report.metrics import Array

WIDTH, HEIGHT = 960, 520  # of a drawing, without the labels below it
LEFT, RIGHT, TOP = 104, 36, 20
ROW = 72  # height of a row of dots
LINE = 30  # of text
LETTER = 14
POINTS = 100  # of a curve, at most
HUGE = 1e100  # values beyond it are drawn there


@dataclass(frozen=True)
class Scale:
    """An axis: its range, its labelled ticks, its title, and whether it is logarithmic."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str = ""
    log: bool = False

    def share(self, values: Array) -> Array:
        """Return where values lie between `low`, 0, and `high`, 1; NaN where they have no place."""
        low, high = self.low, self.high
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.log:
                values, low, high = np.log(values), math.log(low), math.log(high)
            shares = (values - low) / (high - low)
        return np.where(np.isfinite(shares), shares, np.nan)

    def described(self) -> str:
        """Return range and kind as text, from which a script finds values again."""
        return f"{self.low:.9g} {self.high:.9g}{' log' if self.log else ''}"


@dataclass(frozen=True)
class Series:
    """A line of points, with a range around each as a band or as whiskers.

    Attributes:
        label: Its name.
        style: Number of its style.
        x, y: The points.
        low, high: The range around each; None for none.
        dots: Show dots with whiskers and texts, else a line with a band.
        joined: Join dots with a line.
        open: Open dots and a dashed line, for a paper's numbers.
        texts: What is said of each dot.
    """

    label: str
    style: int
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    dots: bool = False
    joined: bool = True
    open: bool = False
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A drawing, a note that says how to read it, and the series that its own legend names."""

    title: str
    note: str
    svg: Markup
    legend: Sequence[Series] = ()


def linear(values: Array, title: str = "", unit: str = "", *, zero: bool = False) -> Scale:
    """Return a scale with some five round ticks around these values; from zero on if asked for."""
    finite = np.clip(values[np.isfinite(values)], -HUGE, HUGE)
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    low = min(low, 0.0) if zero else low
    size = max(abs(low), abs(high))
    if high - low <= 1e-6 * size or not size:
        low, high = low - 0.5 * (size or 1.0), high + 0.5 * (size or 1.0)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s for s in (power, 2 * power, 5 * power, 10 * power) if s >= 0.99 * rough)
    first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    ticks = [(i * step, f"{i * step:.6g}{unit}") for i in range(first, last + 1)]
    return Scale(first * step, last * step, ticks, title)


def logarithmic(values: Array, title: str = "") -> Scale:
    """Return a logarithmic scale around these values, which are positive."""
    low, high = float(values.min()), float(values.max())
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    round_ = [f * 10.0**p for p in range(first, last + 1) for f in factors]
    ticks = [(v, f"{v:g}") for v in round_ if low <= v <= high]
    return Scale(low, high, ticks, f"{title} (log scale)", log=True)


def heights(series: Sequence[Series]) -> Array:
    """Return all values, with the ranges around them, that have to fit on an axis."""
    return np.concatenate([a for s in series for a in (s.y, s.low, s.high) if a is not None])


def skewed(values: Array) -> bool:
    """Whether the largest value is so much larger than the median that a log scale is needed."""
    positive = values[values > 0]
    return len(positive) > 0 and float(positive.max()) > 5 * float(np.median(positive))


def named(names: Sequence[str], title: str = "") -> Scale:
    """Return a scale with a place for each name, at 0, 1 and so on."""
    return Scale(-0.5, len(names) - 0.5, list(enumerate(names)), title)


def plot(x: Scale, y: Scale, series: Sequence[Series], target: float | None = None) -> Markup:
    """Return lines, bands and dots between two axes, with a dotted line at the target."""
    inner = WIDTH - LEFT - RIGHT
    letters = max(4, inner // (max(1, len(x.ticks)) * LETTER))
    labels = [(at, wrap(text, letters)[:3]) for at, text in x.ticks]
    below = 16 + LINE * (max((len(lines) for _, lines in labels), default=0) + bool(x.title))
    parts = [
        _text(LEFT - 12, TOP + v + 8, text, "end") + _line(LEFT, TOP + v, "h", inner, "grid")
        for v, text in _places(y, HEIGHT, up=True)
    ]
    for (h, _), (_, lines) in zip(_places(x, inner), labels, strict=True):
        parts += [
            _text(LEFT + h, TOP + HEIGHT + 12 + LINE * (i + 1) - 6, line)
            for i, line in enumerate(lines)
        ]
        parts.append(_line(LEFT + h, TOP + HEIGHT, "v", 8, "grid"))
    if x.title:
        parts.append(_text(LEFT + inner // 2, TOP + HEIGHT + below + 2, x.title))
    if target is not None and 0 <= (at := 1 - float(y.share(np.array(target)))) <= 1:
        parts.append(_line(LEFT, TOP + round(HEIGHT * at), "h", inner, "target"))
    drawn = Markup("").join(_drawn(one, x, y, inner) for one in series)
    frame = Markup(
        '<svg class="area" x="{}" y="{}" width="{}" height="{}" data-x="{}" data-y="{}">{}</svg>'
    ).format(LEFT, TOP, inner, HEIGHT, x.described(), y.described(), drawn)
    return _whole(TOP + HEIGHT + below + 12, [*parts, frame])


def dots(x: Scale, names: Sequence[str], series: Sequence[Series]) -> Markup:
    """Return a row of dots for each name; a series' y are the numbers of its rows."""
    height, inner = ROW * len(names) + 12, WIDTH - 48
    parts = [
        _line(24 + h, TOP, "v", height, "grid") + _text(24 + h, TOP + height + LINE, text)
        for h, text in _places(x, inner)
    ]
    parts += [_text(0, TOP + ROW * i + 20, name, "start") for i, name in enumerate(names)]
    parts.append(_text(24 + inner // 2, TOP + height + 2 * LINE + 4, x.title))
    rows = Scale(len(names) - 0.5, -0.5, ())
    drawn = Markup("").join(
        _drawn(one, x, rows, inner, ROW * len(names), sideways=True) for one in series
    )
    frame = Markup('<g transform="translate(24 {})">{}</g>').format(TOP + 4, drawn)
    return _whole(TOP + height + 2 * LINE + 16, [*parts, frame])


def grid(x: Scale, y: Scale, picture: str, height: int, key: Scale, colours: str) -> Markup:
    """Return a picture with a cell for each pair of names, and the key to its colours."""
    inner, top = WIDTH - LEFT - 150, TOP + LINE
    parts = [_text(LEFT - 12, top + v + 8, text, "end") for v, text in _places(y, height)]
    parts += [_text(LEFT - 12, top - 12, y.title, "end")]
    parts += [_text(LEFT + h, top + height + LINE, text) for h, text in _places(x, inner)]
    parts.append(_text(LEFT + inner // 2, top + height + 2 * LINE + 4, x.title))
    beside, tall = LEFT + inner + 32, min(height, 320)
    parts += [
        _text(beside + 36, top + v + 8, text, "start") for v, text in _places(key, tall, up=True)
    ]
    parts += [_image(LEFT, top, inner, height, picture), _image(beside, top, 24, tall, colours)]
    return _whole(top + height + 2 * LINE + 16, parts)


def _places(scale: Scale, length: int, *, up: bool = False) -> list[tuple[int, str]]:
    """Return where the ticks are on an axis of that length."""
    shares = scale.share(np.array([at for at, _ in scale.ticks], np.float64))
    each = zip((1 - shares if up else shares).tolist(), scale.ticks, strict=True)
    return [(round(length * share), text) for share, (_, text) in each]


def _drawn(
    one: Series, x: Scale, y: Scale, width: int, height: int = HEIGHT, *, sideways: bool = False
) -> Markup:
    """Return the elements of a series."""

    def across(values: Array) -> Array:
        return np.rint(width * np.clip(x.share(values), 0, 1))

    def down(values: Array) -> Array:
        return np.rint(height * (1 - np.clip(y.share(values), 0, 1)))

    thin = np.unique(np.linspace(0, len(one.x) - 1, min(len(one.x), POINTS)).round().astype(int))
    h, v, parts = across(one.x[thin]), down(one.y[thin]), []
    if one.low is not None and one.high is not None:
        place = across if sideways else down
        low, high = place(one.low[thin]), place(one.high[thin])
        known = np.isfinite(low) & np.isfinite(high) & np.isfinite(h) & np.isfinite(v)
        if one.dots:
            ends = zip(*(a[known].astype(int).tolist() for a in (h, v, low, high)), strict=True)
            d = "".join(
                f"M{a} {q}H{b}" if sideways else f"M{p} {a}V{b}" for p, q, a, b in ends if a != b
            )
        else:
            d = path(np.r_[h[known], h[known][::-1]], np.r_[high[known], low[known][::-1]])
        name = "whisker" if one.dots else "band"
        parts.append(Markup('<path class="{}" d="{}"/>').format(name, d) if d else Markup())
    if one.joined:
        parts.append(Markup('<path class="line" d="{}"/>').format(path(h, v)))
    if one.dots or len(thin) <= 10:
        texts = list(one.texts) or [""] * len(one.x)
        for a, b, text in zip(h.tolist(), v.tolist(), (texts[i] for i in thin), strict=True):
            if math.isfinite(a) and math.isfinite(b):
                said = Markup("<title>{}</title>").format(text) if text else ""
                dot = '<circle cx="{:.0f}" cy="{:.0f}" r="{}">{}</circle>'
                parts.append(Markup(dot).format(a, b, 9 if one.dots else 6, said))
    kind = "series open" if one.open else "series"
    return Markup('<g class="{} k{}">{}</g>').format(kind, one.style, Markup("").join(parts))


def path(x: Array, y: Array) -> str:
    """Return a line through points as relative moves in whole units, broken where one is NaN."""
    moves, here, drawing = [], (0, 0), False
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        if not (math.isfinite(a) and math.isfinite(b)):
            drawing = False
            continue
        there = int(a), int(b)
        moves.append(f"{'l' if drawing else 'm'}{there[0] - here[0]} {there[1] - here[1]}")
        here, drawing = there, True
    return "".join(moves).replace(" -", "-")


def _whole(height: int, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" class="plot">{}</svg>').format(
        WIDTH, height, Markup("").join(parts)
    )


def _text(x: int, y: int, text: str, anchor: str = "middle") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _line(x: int, y: int, way: str, length: int, name: str) -> Markup:
    return Markup('<path class="{}" d="M{} {}{}{}"/>').format(name, x, y, way, length)


def _image(x: int, y: int, width: int, height: int, picture: str) -> Markup:
    return Markup(
        '<image x="{}" y="{}" width="{}" height="{}" preserveAspectRatio="none" href="{}"/>'
    ).format(x, y, width, height, picture)
