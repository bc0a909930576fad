"""Facts to HTML: the page of a pipeline and the page of one table.

A page is complete without a script and loads nothing. States are written out, so that no meaning is in a
colour alone; tables have captions and headings, and become lists of cards on a narrow screen. Nothing here
does I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import TYPE_CHECKING

from pipeline import __version__
from pipeline.metadata.events import Event
from pipeline.report.status_page import (
    BEHIND,
    COPYING,
    NEEDS_PERSON,
    STATES,
    Status,
    TableStatus,
    duration_text,
    list_notices,
    maintenance_line,
    schedule_line,
    seconds_until_limit,
    size_text,
    slot_lines,
)
from pipeline.report.table_details import TableDetails, list_facts
from pipeline.report.web import style
from pipeline.report.web.facts import PageFacts, SchemaVersion
from pipeline.report.web.markup import NOTHING, Html, join, name_text, sentence_text, tag, time_text
from pipeline.table_name import TableName
from pipeline.units import (
    format_byte_rate,
    format_count,
    format_duration,
    format_nonzero,
    format_share,
    format_size,
)

if TYPE_CHECKING:
    from pipeline.postgres.replication.slot_status import SourceStatus

MAX_EVENTS = 30
MAX_TABLE_EVENTS = 20
_CARDS = "cards"


@dataclass(frozen=True, slots=True)
class PageFrame:
    """What a page has around its facts: links, elements of its head, controls, and plots of the last hour."""

    link: Callable[[TableName], str | None] = lambda _: None
    home: str | None = None
    head: Html = NOTHING
    controls: Html = NOTHING
    hour: Html = NOTHING
    scripts: Html = NOTHING
    policy: str = style.POLICY


def render_page(facts: PageFacts, frame: PageFrame | None = None) -> str:
    """Return the page of a pipeline; its tables link to their pages, or to the details in the same page."""
    own = {name: f"t{number}" for number, name in enumerate(sorted(facts.details), 1)}
    if frame is None:
        frame = PageFrame(link=lambda name: f"#{own[name]}" if name in own else None)
    status, tables = facts.status, facts.tables
    title, words = f"Pipeline {status.pipeline}", headline(status)
    sections = [
        ("attention", "Needs attention", _attention(tables)),
        ("slot", "Slot and WAL", _slot(status)),
        ("hour", "The last hour", frame.hour),
        ("tables", "Tables", _tables(facts, tables, frame)),
        ("copies", "Copies under way", _copies(tables, frame)),
        ("misfits", "Misfits", _misfits(tables, frame)),
        ("events", "Events", _events(facts.events[:MAX_EVENTS], "The newest events of all tables", frame)),
        ("details", "Details by table", _all_details(facts, tables, own)),
    ]
    shown = [(key, heading, content) for key, heading, content in sections if content]
    links = (tag("li", tag("a", heading, href=f"#{key}")) for key, heading, _ in shown)
    main = [_section(key, heading, content) for key, heading, content in shown]
    top = [
        tag("h1", "Pipeline ", name_text(status.pipeline)),
        tag("p", words, class_="headline", id="headline", role="status"),
        tag("p", *_positions(status), class_="quiet", id="positions"),
        tag("nav", tag("ul", *links), aria_label="Sections", id="sections"),
    ]
    return _document(title, facts, top, main, frame)


def render_table_page(facts: PageFacts, name: TableName, frame: PageFrame) -> str:
    """Return the page of a table that is among the details."""
    details = facts.details[name]
    home = tag("nav", tag("a", f"Pipeline {facts.status.pipeline}", href=frame.home or "/"), aria_label="Up")
    top = [
        home,
        tag("h1", "Table ", name_text(name)),
        tag("p", "State: ", state_mark(details.table), class_="headline", id="headline", role="status"),
    ]
    parts = _details_parts(facts, details)
    main = [_section(key, heading, content) for key, heading, content in parts if content]
    return _document(f"{name}, pipeline {facts.status.pipeline}", facts, top, main, frame)


def render_notice(title: str, sentence: str, policy: str = style.POLICY) -> str:
    """Return a small page that says one thing, with a link to the page of the pipeline."""
    body = tag("main", tag("h1", title), tag("p", sentence), tag("p", tag("a", "All tables", href="/")))
    return f"<!DOCTYPE html>\n{tag('html', _head(title, policy, Html('')), tag('body', body), lang='en')}\n"


def headline(status: Status) -> str:
    """Return the state of a pipeline in words, the first that applies."""
    counts = Counter(table.state for table in status.tables)
    total = format_count(len(status.tables), "table")
    problems = [f"{counts[state]} {state}" for state in NEEDS_PERSON if counts[state]]
    slot = status.source.slot if status.source else None
    if status.source and slot is None and status.captured:
        problems.insert(0, "the slot does not exist")
    elif slot is not None and slot.is_lost:
        problems.insert(0, "the slot is lost")
    elif status.source and seconds_until_limit(status.source, status.rate) == 0.0:
        problems.insert(0, "the slot can be lost at the next checkpoint")
    elif status.source and status.source.holder:
        problems.insert(0, "the slot's WAL is held back")
    if problems:
        return f"Needs attention: {', '.join(problems)}, of {total}."
    if not status.tables:
        return "No tables yet."
    working = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    if counts[COPYING] or counts[BEHIND]:
        return f"At work: {', '.join(working)}, of {total}."
    return f"In order: {', '.join(working)}, of {total}."


def state_mark(table: TableStatus) -> Html:
    """Return the state in words, with its sign and colour."""
    color, sign = style.STATES[table.state]
    return tag("span", tag("span", f"{sign} ", aria_hidden="true"), table.state, class_=f"state {color}")


def _document(title: str, facts: PageFacts, top: Sequence[str], main: Sequence[str], frame: PageFrame) -> str:
    body = tag(
        "body",
        tag("a", "To the content", href="#content", class_="skip"),
        tag("header", *top, frame.controls),
        tag("main", *main, id="content", tabindex="-1"),
        tag(
            "footer",
            tag("p", "As of ", time_text(facts.read_at), f". pgdelta {__version__}.", id="read-at"),
        ),
        frame.scripts,
    )
    return f"<!DOCTYPE html>\n{tag('html', _head(title, frame.policy, frame.head), body, lang='en')}\n"


def _head(title: str, policy: str, more: Html) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style.STYLE)),
        more,
    )


def _section(key: str, heading: str, content: str) -> Html:
    return tag(
        "section", tag("h2", heading, id=f"{key}-heading"), content, id=key, aria_labelledby=f"{key}-heading"
    )


def _positions(status: Status) -> Iterator[str]:
    yield from ("Bronze is complete up to ", _lsn(status.captured), "; silver shows ", _lsn(status.applied))
    if status.commit_time is not None:
        yield from (", committed ", time_text(status.commit_time.astimezone(timezone.utc)))
    yield ". "
    if status.source is None:
        why = f"{status.unreachable} " if status.unreachable else "The source was not read. "
        yield f"{why}Lag is measured against bronze."
    else:
        yield "Lag is measured against the source."


def _lsn(lsn: object) -> Html:
    return tag("span", str(lsn), class_="whole")


def _attention(tables: Sequence[TableStatus]) -> Html:
    items = [
        tag(
            "li",
            tag("span", f"{notice.label}: ", class_=f"{style.STATES[notice.state][0]}-text"),
            sentence_text(notice.text),
        )
        for notice in list_notices(tables)
    ]
    return tag("ul", *items, class_="notices") if items else NOTHING


def _slot(status: Status) -> Html:
    upkeep = list[tuple[str, str]]()
    if status.interval is not None and status.schedule.windows:
        line = schedule_line(status.schedule, status.interval)
        upkeep.append(("schedule", line.removeprefix("schedule: ")))
    if status.maintenance:
        line = maintenance_line(list(status.maintenance.values()))
        upkeep.append(("maintenance", line.removeprefix("maintenance: ")))
    source = status.source
    if source is None:
        why = tag("p", status.unreachable or "The source was not read.")
        return join([why, _facts_table("Schedule and maintenance", upkeep)]) if upkeep else why
    rows = [*_slot_rows(source, status), *upkeep]
    return _facts_table("The slot at the source, and the WAL that is retained for it", rows)


def _slot_rows(source: SourceStatus, status: Status) -> Iterator[tuple[str, str]]:
    slot, lines = source.slot, slot_lines(source, status.slot_name, status.rate)
    if slot is None:
        yield "slot", lines[0].removeprefix("slot ")
        return
    yield "slot", join([name_text(status.slot_name), ", active" if slot.is_active else ", not active"])
    yield "restart_lsn", _lsn(slot.restart_lsn or "not set")
    yield "confirmed_flush_lsn", _lsn(slot.confirmed_flush_lsn or "not set")
    yield "WAL ends at", _lsn(source.wal_lsn)
    if status.refusal is not None:
        yield "state", status.refusal
    if slot.is_lost:
        yield "state", lines[-1]
        return
    retained = "unknown" if source.retained_size is None else format_size(source.retained_size)
    yield "WAL retained", f"{retained} ({slot.wal_status})" if slot.wal_status else retained
    if source.holder is not None:
        yield "held back", source.holder.sentence
    yield "WAL written", "unknown" if status.rate is None else format_byte_rate(status.rate)
    yield "limit", lines[-1].removeprefix("limit: ")
    if source.keep_size and source.safe_size is not None:
        used = min(1.0, max(0.0, 1 - source.safe_size / source.keep_size))
        bar = tag("progress", max=1, value=f"{used:.3f}", aria_label="Part of the limit that is used")
        yield "limit used", join([bar, f" {format_share(used)}"])
    seconds = seconds_until_limit(source, status.rate)
    if seconds is not None:
        yield "forecast", f"{format_duration(seconds)} until the limit, if no job reads the slot"


def _tables(facts: PageFacts, tables: Sequence[TableStatus], frame: PageFrame) -> Html:
    if not tables:
        return tag("p", "Silver has no table yet, and none is being copied.")
    rows = [
        (
            _linked(table.name, frame),
            join(
                [
                    state_mark(table),
                    f" {format_share(table.copy_share)}" if table.copy_share is not None else "",
                    tag("span", " awaits copy", class_="whole") if table.awaits_copy else "",
                ]
            ),
            duration_text(table.lag_seconds),
            size_text(table.lag_bytes),
            format_nonzero(sum(table.operations.values())),
            format_nonzero(sum(table.misfits.values())),
            _lsn(table.applied) if table.applied else "",
            _last_event(table),
        )
        for table in tables
    ]
    reference = "the source" if facts.status.source else "bronze"
    count = format_count(len(tables), "table")
    caption = f"{count}, those that need attention first. Lag is measured against {reference}."
    headings = ("table", "state", "lag", "WAL lag", "last day", "misfits", "applied", "last event")
    return _table(caption, headings, rows, numbers=("lag", "WAL lag", "last day", "misfits"))


def _last_event(table: TableStatus) -> str:
    return tag("span", f"{table.event.kind} at {table.event.lsn}", class_="whole") if table.event else ""


def _linked(name: TableName, frame: PageFrame) -> Html:
    address = frame.link(name)
    return tag("a", name_text(name), href=address) if address else name_text(name)


def _copies(tables: Sequence[TableStatus], frame: PageFrame) -> Html:
    rows = list[tuple[str, ...]]()
    for table in tables:
        if table.copy_share is not None:
            bar = tag(
                "progress", max=1, value=f"{table.copy_share:.3f}", aria_label=f"Copied part of {table.name}"
            )
            rows.append(
                (
                    _linked(table.name, frame),
                    join([bar, f" {format_share(table.copy_share)}"]),
                    table.sentence or "",
                )
            )
        elif table.awaits_copy:
            rows.append((_linked(table.name, frame), "waits", table.sentence or ""))
    caption = "Tables that are copied, or that the next ingest copies"
    return _table(caption, ("table", "copied", "state"), rows)


def _misfits(tables: Sequence[TableStatus], frame: PageFrame) -> Html:
    rows = [
        (_linked(table.name, frame), name_text(column), format_nonzero(count))
        for table in tables
        for column, count in sorted(table.misfits.items())
    ]
    caption = "Values that did not fit their silver type, by column; _pgdelta/misfits has them"
    return _table(caption, ("table", "column", "values"), rows, numbers=("values",))


def _events(events: Sequence[Event], caption: str, frame: PageFrame | None) -> Html:
    named = ("table",) if frame is not None else ()
    rows = [
        (
            *((_linked(each.name, frame),) if frame is not None else ()),
            tag("span", each.kind, class_="whole"),
            time_text(each.recorded_at),
            _lsn(each.lsn),
            sentence_text(each.sentence),
        )
        for each in events
    ]
    return _table(caption, (*named, "kind", "recorded", "LSN", "event"), rows)


def _all_details(facts: PageFacts, tables: Sequence[TableStatus], ids: dict[TableName, str]) -> Html:
    return join(
        tag(
            "details",
            tag("summary", name_text(table.name), state_mark(table)),
            # The identifier is inside, because a browser opens what a link leads into.
            tag(
                "div",
                *(
                    join([tag("h3", heading), content])
                    for _, heading, content in _details_parts(facts, facts.details[table.name])
                    if content
                ),
                id=ids[table.name],
            ),
        )
        for table in tables
        if table.name in facts.details
    )


def _details_parts(facts: PageFacts, details: TableDetails) -> list[tuple[str, str, Html]]:
    """Return the parts of a table's details: key, heading and content, which may be empty."""
    name = details.table.name
    behind = "the source" if facts.status.source else "bronze"
    events = facts.events_of(name, MAX_TABLE_EVENTS)
    return [
        ("facts", "State", _facts_table(f"State of {name}", list_facts(details, behind))),
        ("columns", "Columns", _columns(details)),
        ("events", "Events", _events(events, f"The newest events of {name}", None)),
        ("schema", "Schema history", _schema(name, facts.schemas.get(name, ()))),
    ]


def _columns(details: TableDetails) -> Html:
    rows = [
        (
            name_text(column.name),
            column.silver_type or "not in silver",
            column.source_type or "not in source",
            "key" if column.is_key else "",
            format_nonzero(column.misfits),
        )
        for column in details.columns
    ]
    headings = ("column", "silver type", "source type", "key", "misfits")
    return _table(f"Columns of {details.table.name}", headings, rows, numbers=("misfits",))


def _schema(name: TableName, versions: Sequence[SchemaVersion]) -> Html:
    rows = [(_lsn(version.lsn), " ".join(version.changes)) for version in reversed(versions)]
    caption = f"Relation versions of {name} in bronze, the newest first"
    return _table(caption, ("recorded at", "change"), rows)


def _table(
    caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()
) -> Html:
    """Return a table whose first column names the row, nothing without rows.

    Roles keep it a table where its rows are cards.
    """
    if not rows:
        return NOTHING

    def kind(heading: str) -> str:
        """Return the class of a column: a number, or a text that gets a line of a card for itself."""
        return "number" if heading in numbers else "long"

    head = (
        tag("th", heading, scope="col", role="columnheader", class_=kind(heading)) for heading in headings
    )
    body = (
        tag(
            "tr",
            tag("th", row[0], scope="row", role="rowheader"),
            *(
                tag("td", cell, role="cell", data_label=heading, class_=kind(heading))
                for heading, cell in zip(headings[1:], row[1:], strict=True)
            ),
            role="row",
        )
        for row in rows
    )
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *head, role="row"), role="rowgroup"),
        tag("tbody", *body, role="rowgroup"),
        class_=_CARDS,
        role="table",
    )


def _facts_table(caption: str, rows: Iterable[tuple[str, str]]) -> Html:
    body = (
        tag(
            "tr",
            tag("th", label, scope="row"),
            tag("td", text if isinstance(text, Html) else sentence_text(text)),
        )
        for label, text in rows
    )
    return tag("table", tag("caption", caption), tag("tbody", *body), class_="facts")
