"""Every form of a table against text written by hand."""

import io
from typing import Literal

import pytest
from rich.console import Console

from fedmix.report.tables import Beside, Cell, Column, Table

NAME = Column("", right=False, wrap=True)


def shown(table: Table, width: int = 80) -> list[str]:
    """The lines on a terminal of that width."""
    out = io.StringIO()
    Console(file=out, width=width).print(table.rich())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_terminal_aligns_numbers_to_the_right() -> None:
    table = Table(
        [NAME, Column("last"), Column("last ten")], [["a", "1.5", "20"], ["bcd", 7, None]]
    )
    assert shown(table) == [
        "",
        "        last   last ten",
        " ───────────────────────",
        "  a      1.5         20",
        "  bcd      7",
        "",
    ]


@pytest.mark.parametrize(
    ("gap", "row"), [(1, " a 1±2 3"), (2, " a  1 ± 2  3"), (3, "  a   1 ± 2   3")]
)
def test_columns_can_stand_closer(gap: Literal[1, 2, 3], row: str) -> None:
    table = Table([NAME, Column("x"), Column("y")], [["a", "1 ± 2", "3"]], gap=gap)
    assert shown(table)[3] == row


def test_title_and_caption_stand_around_a_table() -> None:
    table = Table([Column("M")], [["10"]], title="T", caption="C")
    assert shown(table) == ["T", "", "   M", " ────", "  10", "", "C"]


def test_a_terminal_stacks_what_others_write_in_a_line() -> None:
    columns = [
        Column("ours (theirs)", right=False, stacked="ours\ntheirs"),
        Column("E, 5", stacked="E\n5"),
    ]
    table = Table(columns, [["FedAvg", Beside("70.0", "73.8")], ["order", "–"]])
    assert shown(table) == [
        "",
        "  ours        E",
        "  theirs      5",
        " ───────────────",
        "  FedAvg   70.0",
        "           73.8",
        "",
        "  order       –",
        "",
    ]
    assert table.markdown() == (
        "| ours (theirs) | E, 5 |\n| --- | --: |\n| FedAvg | 70.0 (73.8) |\n| order | – |"
    )


GROUPED = Table(
    [Column("workload", right=False), Column("variant", right=False), Column("ms")],
    [["lenet", "plain", "60"], ["lenet", "compiled", "8"], ["vgg", "plain", "900"]],
    gap=2,
    grouped=True,
)


def test_groups_have_a_heading_on_a_terminal_and_a_column_elsewhere() -> None:
    assert shown(GROUPED) == [
        "",
        "              ms",
        " ────────────────",
        " lenet",
        "   plain      60",
        "   compiled    8",
        "",
        " vgg",
        "   plain     900",
        "",
    ]
    assert GROUPED.markdown() == (
        "| workload | variant | ms |\n| --- | --- | --: |\n"
        "| lenet | plain | 60 |\n| lenet | compiled | 8 |\n| vgg | plain | 900 |"
    )


def test_text_breaks_into_lines_only_where_it_may() -> None:
    """Of 13 characters the frame and the paddings take seven, and the number three."""
    table = Table([NAME, Column("x")], [["a b c d", "123"]])
    assert [line.split() for line in shown(table, 13)[3:-1]] == [["a", "b", "123"], ["c", "d"]]


def test_no_text_is_taken_for_markup() -> None:
    rows: list[list[Cell]] = [["[red]<b>|", "1"]]
    table = Table([Column("[bold]", right=False), Column('"&')], rows)
    assert shown(table)[3].split() == ["[red]<b>|", "1"]
    assert table.markdown().splitlines()[2] == "| [red]<b>/ | 1 |"
    assert table.html() == (
        '<table class="results">\n'
        '<thead><tr><th scope="col">[bold]</th><th scope="col">&#34;&amp;</th></tr></thead>\n'
        "<tbody>\n"
        '<tr><th scope="row">[red]&lt;b&gt;|</th><td data-header="&#34;&amp;">1</td></tr>\n'
        "</tbody>\n</table>"
    )


def test_a_page_has_the_caption_and_both_values() -> None:
    page = Table([NAME, Column("x")], [["a", Beside("1", "2")]], caption="<C>").html()
    assert "<caption>&lt;C&gt;</caption>\n<thead>" in page
    assert '<td data-header="x">1 (2)</td>' in page


def test_csv_keeps_numbers_and_disarms_formulas() -> None:
    table = Table([NAME, Column("x")], [["=1+1", 0.1], ["a,b", None], ["-", -2.5]])
    assert table.csv() == ",x\n'=1+1,0.1\n\"a,b\",\n'-,-2.5\n"


def test_objects_leave_empty_cells_out() -> None:
    table = Table([Column("name"), Column("x")], [["a", 0.0], ["b", None]])
    assert table.objects() == [{"name": "a", "x": 0.0}, {"name": "b"}]
