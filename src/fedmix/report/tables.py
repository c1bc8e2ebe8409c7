"""The table of all reports: for a terminal, and as Markdown, CSV, JSON and HTML."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from markupsafe import Markup
    from rich.table import Table as RichTable
    from rich.text import Text

# The padding in rich that gives so many spaces between two columns.
PADDING = {1: (0, 0, 0, 0), 2: (0, 1, 0, 0), 3: (0, 1, 0, 1)}


class Column(NamedTuple):
    """A column's title and how a terminal shows it.

    Attributes:
        title: The title.
        right: Align to the right, in Markdown too.
        wrap: Break text into lines if there is little room.
        stacked: The title on a terminal, if it differs.
    """

    title: str
    right: bool = True
    wrap: bool = False
    stacked: str = ""


class Beside(NamedTuple):
    """A cell of two values; a terminal shows the second below the first, others in brackets."""

    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.first} ({self.second})"


Cell = str | float | Beside | None  # None is empty


@dataclass(frozen=True)
class Table:
    """Rows of cells below columns; the first column names the rows.

    Attributes:
        columns: The columns.
        rows: The cells of each row.
        title: Title on a terminal.
        caption: Text below the table.
        gap: Number of spaces between columns on a terminal; at 1, `±` has none around it.
        grouped: A terminal shows the first column as headings above the rows that share it.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    caption: str = ""
    gap: Literal[1, 2, 3] = 3
    grouped: bool = False

    @property
    def titles(self) -> list[str]:
        """The titles of the columns."""
        return [column.title for column in self.columns]

    def rich(self) -> "RichTable":
        """Return the table for `rich.print`; text in it is never read as markup."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(
            title=Text(self.title, style="bold") if self.title else None,
            title_justify="left",
            caption=Text(self.caption) if self.caption else None,
            caption_justify="left",
            box=SIMPLE_HEAD,
            padding=PADDING[self.gap],
            show_lines=any(isinstance(cell, Beside) for row in self.rows for cell in row),
        )
        for i, column in enumerate(self.columns[self.grouped :]):
            drawn.add_column(
                Text("" if self.grouped and i == 0 else column.stacked or column.title),
                justify="right" if column.right else "left",
                overflow="ellipsis" if column.right and column.wrap else "fold",
                no_wrap=not column.wrap,
            )
        heading: Cell = None
        for row in self.rows:
            if self.grouped and row[0] != heading:
                heading = row[0]
                drawn.add_section()
                drawn.add_row(Text(_text(heading), style="bold"))
            name, *others = map(self._drawn, row[self.grouped :])
            drawn.add_row(Text("  ") + name if self.grouped else name, *others)
        return drawn

    def _drawn(self, cell: Cell) -> "Text":
        from rich.text import Text

        if isinstance(cell, Beside):
            return Text(f"{cell.first}\n") + Text(cell.second, style="dim")
        return Text(_text(cell).replace(" ± ", "±") if self.gap == 1 else _text(cell))

    def markdown(self) -> str:
        """Return the rows as a Markdown table; a vertical bar in a cell becomes a slash."""
        rule = ["--:" if column.right else "---" for column in self.columns]
        lines = [self.titles, rule, *(map(_text, row) for row in self.rows)]
        return "\n".join(
            f"| {' | '.join(text.replace('|', '/') for text in line)} |" for line in lines
        )

    def csv(self) -> str:
        """Return the rows as CSV, without text that a spreadsheet would run as a formula."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.titles)
        writer.writerows(map(_harmless, row) for row in self.rows)
        return out.getvalue()

    def objects(self) -> list[dict[str, Any]]:
        """Return each row as a JSON object, without its empty cells."""
        rows = (zip(self.titles, row, strict=True) for row in self.rows)
        return [{title: cell for title, cell in row if cell is not None} for row in rows]

    def html(self) -> "Markup":
        """Return the table as HTML; each cell names its column, for narrow screens."""
        from markupsafe import Markup

        head = [Markup('<th scope="col">{}</th>').format(title) for title in self.titles]
        body = []
        for name, *cells in self.rows:
            body.append(Markup('<tr><th scope="row">{}</th>').format(_text(name)))
            body += [
                Markup('<td data-header="{}">{}</td>').format(title, _text(cell))
                for title, cell in zip(self.titles[1:], cells, strict=True)
            ]
            body.append(Markup("</tr>\n"))
        caption = Markup("<caption>{}</caption>\n").format(self.caption) if self.caption else ""
        return Markup(
            '<table class="results">\n{}<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table>'
        ).format(caption, Markup("").join(head), Markup("").join(body))


def _text(cell: Cell) -> str:
    return "" if cell is None else str(cell)


def _harmless(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in tuple("=+-@") else cell
