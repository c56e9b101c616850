"""Tables and lists of facts as HTML. Pure."""

from __future__ import annotations

from typing import Collection, Iterable, Mapping, Sequence

from stoker.report.markup import NOTHING, Attributes, Content, Html, element, joined


def table(
    headers: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    right: Collection[int] = (),
    caption: str = "",
    attributes: Attributes | None = None,
    whole: bool = False,
    folds: bool = False,
) -> Html:
    """A table that scrolls by itself where a page is narrow; empty without rows.

    The columns whose numbers are in `right` have numbers, aligned at the right. Columns that are empty in every row are
    left out, unless it is to be shown `whole`, also without rows. `caption` is read to those who do not see the table.
    One that `folds` has on a telephone each row as a few lines, with its columns' names in them, and none out of sight.
    """
    lines = [list(row) for row in rows]
    if not lines and not (whole and headers):
        return NOTHING
    columns = list(range(max(map(len, [headers, *lines]))))
    if not whole:
        columns = [place for place in columns if any(row[place] for row in lines if place < len(row))]

    def cells(row: Sequence[Content], name: str) -> Html:
        return joined(
            _cell(
                name,
                row[place] if place < len(row) else "",
                number=place in right,
                column=headers[place] if folds and name == "td" and place in right and place < len(headers) else "",
            )
            for place in columns
        )

    head = element("thead", None, element("tr", None, cells(headers, "th"))) if any(headers) else NOTHING
    body = element("tbody", None, *(element("tr", None, cells(row, "td")) for row in lines))
    title = element("caption", {"class": "hidden"}, caption) if caption else NOTHING
    # What scrolls must be reachable by the keyboard.
    wrapper = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": caption or "table"}
    look = {**(attributes or {}), "class": "folds"} if folds else attributes
    return element("div", wrapper, element("table", look, title, head, body))


def _cell(name: str, content: Content, *, number: bool, column: Content) -> Html:
    """A cell; a head without words is none to who hears the page."""
    name = name if content else "td"
    scope = {"scope": "col"} if name == "th" else {}
    about = {"data-column": str(column)} if column and content else {}
    return element(name, {**scope, "class": "number" if number else None, **about}, content)


def facts(pairs: Mapping[str, Content]) -> Html:
    """Names with what they are, as a list; what is empty is left out."""
    shown = [(name, content) for name, content in pairs.items() if content]
    if not shown:
        return NOTHING
    entries = (element("div", None, element("dt", None, name), element("dd", None, content)) for name, content in shown)
    return element("dl", {"class": "facts"}, *entries)
