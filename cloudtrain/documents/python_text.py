"""Parsing of Python source that somebody else has written."""

from __future__ import annotations

import ast
import warnings


def parse_python(source: str | bytes) -> ast.Module:
    """Parse Python source without printing Python's warnings about it.

    Raises:
        SyntaxError: the source is not Python, or is nested too deeply for Python's parser.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (RecursionError, MemoryError):  # the parser's stack is full
        raise SyntaxError("it is nested too deeply") from None
    except ValueError as error:  # a zero byte
        raise SyntaxError(str(error)) from None
