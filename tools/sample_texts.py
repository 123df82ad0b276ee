"""Draw docstrings and messages at random, for a second reader.

    python tools/sample_texts.py --seed 7 [--count 100]

Docstrings are those of functions, classes and modules in `cloudtrain`, each with its signature. Messages are the texts
that reach a user, such as errors, findings and hints, with `{}` where a value stands.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
TELLING = {"message", "hint", "title", "explanation", "help"}
"""Names of arguments whose text reaches a user."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring. The text begins with the signature of a function or class."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), _signature(node) + text


def _signature(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if isinstance(node, ast.Module):
        return ""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})\n".replace("()", "")
    result = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"def {node.name}({ast.unparse(node.args)}){result}\n"


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each message: the first argument of raised errors and of findings, and every hint."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            told = [word.value for word in node.keywords if word.arg in TELLING]
            if name.endswith(("Error", "Missing", "Taken", "NotFound", "Finding", "Problem", "Option")):
                told += node.args[:1]
            for value in told:
                text = _text(value)
                if text and " " in text:
                    yield value.lineno, text


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
    return None


def main() -> None:
    """Print both samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "cloudtrain").rglob("*.py"))}
    chosen = random.Random(options.seed)
    for kind in (docstrings, messages):
        found = [(path, line, text) for path, tree in trees.items() for line, text in kind(tree)]
        print(f"# {min(options.count, len(found))} of {len(found)} {kind.__name__}\n")
        for number, (path, line, text) in enumerate(chosen.sample(found, min(options.count, len(found))), 1):
            print(f"{number}. {path.relative_to(ROOT)}:{line}\n    " + text.replace("\n", "\n    "))
        print()


if __name__ == "__main__":
    main()
