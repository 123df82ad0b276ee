"""Draw docstrings and messages at random, for a second reader.

    python tools/sample_texts.py --seed 7 [--count 100]
    python tools/sample_texts.py --seed 7 --blind OLD NEW --key key.json    # the texts of two commits, mixed
    python tools/sample_texts.py --score key.json marks.txt                 # how many of each the reader marked

Docstrings are those of functions, classes and modules in `cloudtrain`, each with its signature. Messages are the texts
that reach a user, such as errors, findings and hints, with `{}` where a value stands.

Readers differ in what they count. A blind reader who marks as many of the old texts as an earlier reader did reads the
new texts by the same measure. `marks.txt` has the number of a marked text at the beginning of each line.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import random
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
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
            if name.endswith(
                ("Error", "Missing", "Taken", "NotFound", "Finding", "Problem", "Option")
            ):
                told += node.args[:1]
            for value in told:
                text = _text(value)
                if text and " " in text:
                    yield value.lineno, text


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )  # type: ignore[misc]
    return None


def trees(commit: str | None = None) -> dict[Path, ast.AST]:
    """Return the syntax trees of the package's files, in a commit or, by default, as they are."""
    if commit is None:
        files = {
            path.relative_to(ROOT): path.read_text("utf-8")
            for path in (ROOT / "cloudtrain").rglob("*.py")
        }
    else:
        archive = subprocess.run(
            ["git", "archive", commit, "cloudtrain"], check=True, capture_output=True, cwd=ROOT
        )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            found = [
                (member.name, tar.extractfile(member))
                for member in tar
                if member.name.endswith(".py")
            ]
            files = {Path(name): file.read().decode() for name, file in found if file is not None}
    return {path: ast.parse(files[path]) for path in sorted(files)}


def print_samples(seed: int, count: int) -> None:
    """Print a sample of each kind, with its places."""
    chosen, files = random.Random(seed), trees()
    for kind in (docstrings, messages):
        found = [(path, line, text) for path, tree in files.items() for line, text in kind(tree)]
        print(f"# {min(count, len(found))} of {len(found)} {kind.__name__}\n")
        for number, (path, line, text) in enumerate(
            chosen.sample(found, min(count, len(found))), 1
        ):
            print(f"{number}. {path}:{line}\n    " + text.replace("\n", "\n    "))
        print()


def print_mixed(seed: int, count: int, commits: Sequence[str], key: Path) -> None:
    """Print samples of two commits, mixed and without places. Write to `key` which number is from which commit."""
    chosen, answers = random.Random(seed), dict[int, tuple[str, str, str]]()
    both = {commit: trees(commit) for commit in commits}
    for kind in (docstrings, messages):
        drawn = []
        for commit, files in both.items():
            found = [
                (f"{path}:{line}", text)
                for path, tree in files.items()
                for line, text in kind(tree)
            ]
            drawn += [(commit, place, text) for place, text in chosen.sample(found, count)]
        chosen.shuffle(drawn)
        print(f"# {kind.__name__}\n")
        for commit, place, text in drawn:
            answers[len(answers) + 1] = (kind.__name__, commit, place)
            print(f"[{len(answers)}] " + text.replace("\n", "\n    ") + "\n")
    key.write_text(json.dumps(answers), "utf-8")


def print_score(key: Path, marks: Path) -> None:
    """Print how many texts of each kind and commit are marked."""
    answers = json.loads(key.read_text("utf-8"))
    marked = {
        word
        for line in marks.read_text("utf-8").splitlines()
        for word in line.split()[:1]
        if word in answers
    }
    for (kind, commit), drawn in sorted(
        Counter((answer[0], answer[1]) for answer in answers.values()).items()
    ):
        count = sum(tuple(answers[number][:2]) == (kind, commit) for number in marked)
        print(f"{kind} of {commit}: {count} of {drawn}")


def main() -> None:
    """Print samples, or the score of a reader."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--blind", nargs=2, metavar=("OLD", "NEW"))
    parser.add_argument("--key", type=Path, default=Path("key.json"))
    parser.add_argument("--score", nargs=2, type=Path, metavar=("KEY", "MARKS"))
    options = parser.parse_args()
    if options.score:
        print_score(*options.score)
    elif options.blind:
        print_mixed(options.seed, options.count, options.blind, options.key)
    else:
        print_samples(options.seed, options.count)


if __name__ == "__main__":
    main()
