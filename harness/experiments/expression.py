"""The expression of a published row: arithmetic over what its commands print with --format csv."""

import ast
import csv
import io
import operator
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from harness.errors import UsageError, no_such

Cells: TypeAlias = dict[str, str | float]
"""A row of an answer by the names of its columns; a cell without a value is left out."""

_OPERATORS: Mapping[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "median": statistics.median,
    "largest_factor": lambda ratios: max(max(ratio, 1 / ratio) for ratio in ratios),
}
_ALLOWED = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.USub, ast.Constant, ast.Attribute, ast.Subscript, ast.Tuple,
            ast.Name, ast.Call, ast.Load, *_OPERATORS)  # fmt: skip
ALLOWED = f"it may hold OUT.COLUMN, OUT['cell'].COLUMN, numbers, + - * / and {', '.join(FUNCTIONS)}"


def outputs(text: str) -> set[str]:
    """Return the names of the outputs that an expression is over. Raises UsageError for what it may not hold."""
    try:
        nodes = [*ast.walk(ast.parse(text, mode="eval"))]
    except SyntaxError:
        raise UsageError(f"'{text}' is no expression; {ALLOWED}.") from None
    for node in nodes:
        if not isinstance(node, _ALLOWED):
            raise UsageError(f"'{text}' holds '{ast.unparse(node)}'; {ALLOWED}.")
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    if called - FUNCTIONS.keys():
        raise no_such("function of an expression", min(called - FUNCTIONS.keys()), FUNCTIONS)
    return {node.id for node in nodes if isinstance(node, ast.Name)} - called


def read_csv(text: str) -> list[Cells]:
    """Read what a command prints with --format csv.

    A run, which has a line for each statistic, becomes a row for all requests and one for each class: `ttft_p50` is a
    statistic of a metric, `attainment` a metric that has one value alone.
    """
    lines = list(csv.DictReader(io.StringIO(text)))
    rows = [{name: _cell(cell) for name, cell in line.items() if name and cell} for line in lines]
    if not lines or not {"class", "metric", "statistic", "value"} <= lines[0].keys():
        return rows
    classes: dict[str, Cells] = {}
    statistics_of: dict[tuple[str, str], set[str]] = {}
    for line in lines:
        statistics_of.setdefault((line["class"], line["metric"]), set()).add(line["statistic"])
    for line, row in zip(lines, rows, strict=True):
        cells = classes.setdefault(line["class"], {"class": line["class"]} if line["class"] else {})
        single = len(statistics_of[line["class"], line["metric"]]) == 1
        if "value" in row:
            name = line["metric"] if single else f"{line['metric']} {line['statistic']}"
            cells[re.sub(r"\W+", "_", name)] = row["value"]
    return [*classes.values()]


def _cell(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def evaluate(text: str, answers: Mapping[str, Sequence[Cells]]) -> float:
    """Return the value over the rows of each output. Raises UsageError for a name, a row or a value that is not there.

    `OUT.COLUMN` is of an answer with one row, or of all requests of a run; `OUT['cell', 2].COLUMN` is of the row that
    holds these cells. A function of one column alone is over all of its rows.
    """
    outputs(text)
    try:
        return _value(ast.parse(text, mode="eval").body, answers)
    except ZeroDivisionError:
        raise UsageError(f"'{text}' divides by 0.") from None


def _value(node: ast.expr, answers: Mapping[str, Sequence[Cells]]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(operand=operand):
            return -_value(operand, answers)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, answers), _value(right, answers))
        case ast.Call(func=ast.Name(id=name), args=[ast.Attribute() as reference], keywords=[]):
            return FUNCTIONS[name](_cells(reference, answers))
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as arguments, keywords=[]):
            return FUNCTIONS[name]([_value(argument, answers) for argument in arguments])
        case ast.Attribute():
            values = _cells(node, answers)
            if len(values) != 1:
                raise UsageError(
                    f"'{ast.unparse(node)}' is in {len(values)} rows; name one by its cells: OUT['cell'].COLUMN."
                )
            return values[0]
    raise UsageError(f"'{ast.unparse(node)}' has no value; {ALLOWED}.")


def _holds(row: Cells, wanted: Sequence[Any]) -> bool:
    return all(cell in row.values() for cell in wanted)


def _cells(node: ast.Attribute, answers: Mapping[str, Sequence[Cells]]) -> list[float]:
    """Return the cells of a column in the rows that hold the cells in brackets; at least one."""
    match node.value:
        case ast.Name(id=output):
            wanted: tuple[Any, ...] = ()
        case ast.Subscript(value=ast.Name(id=output), slice=in_brackets):
            cells = ast.literal_eval(in_brackets)
            wanted = cells if isinstance(cells, tuple) else (cells,)
        case _:
            raise UsageError(f"'{ast.unparse(node)}' has no value; {ALLOWED}.")
    if output not in answers:
        raise no_such("output of its commands", output, answers)
    rows = answers[output]
    # a number may stand in a column of results, too: the rows count that have the cells furthest left
    columns = {
        at: [[*row.values()].index(cell) for cell in wanted] for at, row in enumerate(rows) if _holds(row, wanted)
    }
    leftmost = min(columns.values(), default=[])
    chosen = [rows[at] for at, places in columns.items() if places == leftmost]
    if not wanted and rows and "class" not in rows[0] and all("class" in row for row in rows[1:]):
        chosen = [rows[0]]  # all requests of a run, before those of each class
    values = [row[node.attr] for row in chosen if node.attr in row]
    if not values:
        if wanted and not chosen:
            raise UsageError(f"No row of '{output}' holds {', '.join(map(str, wanted))}.")
        raise no_such(f"column of '{output}' with a value", node.attr, {name for row in chosen for name in row})
    if texts := [value for value in values if isinstance(value, str)]:
        raise UsageError(f"'{ast.unparse(node)}' is the text '{texts[0]}'; name a column of numbers.")
    return [value for value in values if not isinstance(value, str)]
