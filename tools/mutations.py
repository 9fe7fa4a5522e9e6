"""Mutants of the functions of a checkout, for `mutants.py`.

One place of one statement is changed: a comparison, an operator, a constant, a condition, or what is returned. Left out
are what raises or asserts, annotations, texts with values in them, defaults of parameters, imports for types alone.
"""

import ast
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("harness", "workloads", "backends", "reports")
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip


class Place(NamedTuple):
    """Identity of a mutant, independent of file and class."""

    function: str
    statement: str
    index: int
    change: str


class Found(NamedTuple):
    """A place in a file."""

    path: str
    name: str
    node: ast.AST


def _header(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and its expressions, without nested statements, annotations and f-strings."""
    yield node
    for field, value in ast.iter_fields(node):
        if field == "annotation" or (field in BLOCKS and isinstance(node, ast.stmt)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _header(child)


def text_of(node: ast.AST) -> str:
    """A statement without the statements in it, or an expression."""
    node = copy.copy(node)
    for field in BLOCKS if isinstance(node, ast.stmt) else ():
        if hasattr(node, field):
            setattr(node, field, [ast.Pass()] if field == "body" else [])
    return ast.unparse(node).removesuffix("\n    pass")


def _changes(node: ast.AST, returns: str) -> Iterator[str]:
    match node:
        case ast.Compare():
            yield from (f"comparison {i}" for i, op in enumerate(node.ops) if type(op) in COMPARED)
        case ast.BinOp() | ast.AugAssign() if type(node.op) in COMPUTED:
            yield "arithmetic"
        case ast.BoolOp():
            yield "and, or"
        case ast.UnaryOp(op=ast.Not()):
            yield "not dropped"
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            yield "constant"
        case ast.Call(func=ast.Name(id="min" | "max")):
            yield "min, max"
        case ast.If(test=ast.Compare(ops=[ast.Eq() | ast.NotEq()]) | ast.UnaryOp(op=ast.Not())):
            pass  # its comparison or its `not` is a mutant
        case ast.If() | ast.IfExp():
            yield "condition negated"
        case ast.Return(value=ast.AST()) if "bool" not in returns and ast.unparse(node) != "return None":
            yield "None returned"


def changed(old: ast.AST, change: str) -> Any:
    """The node after the change."""
    node: Any = copy.copy(old)
    match change.split()[0]:
        case "comparison":
            at = int(change.split()[1])
            node.ops = [COMPARED[type(op)]() if i == at else op for i, op in enumerate(node.ops)]
        case "arithmetic":
            node.op = COMPUTED[type(node.op)]()
        case "and,":
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        case "not":
            return node.operand
        case "constant":
            node.value += 1
        case "min,":
            node.func = ast.Name("max" if node.func.id == "min" else "min", ast.Load())
        case "condition":
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "None":
            node.value = ast.Constant(None)
    return node


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Raise() | ast.Assert():
                continue
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                continue
        yield node
        inner = [getattr(node, field, []) for field in ("body", "orelse", "finalbody")]
        inner += [part.body for field in ("handlers", "cases") for part in getattr(node, field, [])]
        for block in inner:
            yield from _statements(block)


def _places(path: str, node: ast.AST, inside: str = "") -> Iterator[tuple[Place, Found]]:
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            returns = ast.unparse(child.returns) if child.returns else ""
            for statement in _statements(child.body):
                text = text_of(statement)
                for index, part in enumerate(_header(statement)):
                    for change in _changes(part, returns):
                        yield Place(child.name, text, index, change), Found(path, name, part)
        yield from _places(path, child, name)


def places(top: Path) -> Iterator[tuple[Place, Found]]:
    """All places of a checkout."""
    for file in sorted(p for name in PACKAGES for p in (top / name).rglob("*.py")):
        yield from _places(str(file.relative_to(top)), ast.parse(file.read_text(encoding="utf-8")))


def rewritten(file: Path, make: Callable[[Place, ast.AST], ast.AST | None]) -> str:
    """The text of a file in which `make` replaced the node of each place for which it returns one."""
    tree, at = ast.parse(file.read_text(encoding="utf-8")), defaultdict[int, list[Place]](list)
    for place, found in _places("", tree):
        at[id(found.node)].append(place)

    class Rewritten(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            found = at.get(id(node), ())
            self.generic_visit(node)
            for place in found:
                node = make(place, node) or node
            return node

    return ast.unparse(ast.fix_missing_locations(Rewritten().visit(tree)))


def noted(node: Any, call: str) -> ast.AST:
    """The node with a call, which returns None, before its value is evaluated."""
    field = {"Return": "value", "AugAssign": "value", "If": "test"}.get(type(node).__name__)
    value = ast.BoolOp(ast.Or(), [ast.parse(call, mode="eval").body, getattr(node, field) if field else node])
    if field:
        setattr(node, field, value)
    return node if field else value
