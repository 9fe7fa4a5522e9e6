"""A document as GitHub markdown, for a job summary or an issue, with the findings first and foreign text escaped."""

from collections.abc import Iterator

from reports._format import in_markdown
from reports.document import Cell, Command, Document, Table


def render(document: Document) -> str:
    """The document as markdown that ends with a newline; figures and sections of detail are left out."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: Document) -> Iterator[str]:
    yield f"**{_text(document.title)}**"
    if document.subtitle:
        yield _text(document.subtitle)
    for finding in document.findings:
        yield " ".join([f"**{_text(finding.text)}**", *map(_text, finding.notes)])
    lists = (
        [f"{_text(name)}: {_text(value)}" for name, value in document.key_facts],
        [f"**Warning:** {_text(f'{warning.message} {warning.remedy}'.strip())}" for warning in document.warnings],
    )
    yield from ("\n".join(f"- {line}" for line in lines) for lines in lists if lines)
    for section in document.sections:
        for block in () if section.detail else section.blocks:
            if isinstance(block, str):
                yield _text(block)
            elif isinstance(block, Table):
                yield f"{_text(block.caption)}\n\n{table(block)}".strip()
            elif isinstance(block, Command):
                yield command(block)
    if document.next is not None:
        yield command(document.next)


def table(block: Table) -> str:
    """The table; a cell with a link keeps its text alone."""
    rows = [[in_markdown(cell.text if isinstance(cell, Cell) else cell) for cell in row] for row in block.rows]
    last = len(block.heads) - block.words
    rule = ["---:" if block.left <= number < last else "---" for number in range(len(block.heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in ([in_markdown(head) for head in block.heads], rule, *rows))


def command(block: Command) -> str:
    """What a command is for, and the command in a fence that no text inside can close."""
    return f"{_text(block.text)}:\n\n```sh\n{block.command.replace('```', '` ` `')}\n```"


def _text(text: str) -> str:
    return in_markdown(text, None)
