"""Examples of a file, a folder or the Hub as tokens, with a mask of those that are learned.

A row has `messages` (role and content), or `prompt` and `completion` (two texts, or two lists of messages), or `text`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetDict

from cloudtrain import runtime

KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}


def read_rows(place: str, split: str) -> Dataset:
    """Return the rows of a split of a file, of a folder (of such files, or that `save_to_disk` wrote), or of a data set
    of the Hub.

    Raises:
        SetupError: there is no such split, or no row in it.
    """
    path = Path(place)
    try:
        if path.is_dir() and any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(place)
            rows = found[split] if isinstance(found, DatasetDict) else found
        elif path.exists():
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            files = [file for file in files if file.suffix in KINDS]
            named = [file for file in files if split in file.stem.split("-")[0]] if path.is_dir() else []
            kinds = {KINDS[file.suffix] for file in named or files}
            if len(kinds) != 1:
                raise ValueError(f"{len(files)} files of {', '.join(KINDS)}")
            rows = datasets.load_dataset(kinds.pop(), data_files=[str(file) for file in named or files], split="train")
        else:
            rows = datasets.load_dataset(place, split=split)
    except (KeyError, ValueError, OSError, datasets.exceptions.DatasetGenerationError) as error:
        raise runtime.SetupError(
            f"`{place}` has no examples that can be read (split `{split}`): {error}",
            hint="give a .jsonl or .parquet file, a folder of one of them, or the name of a data set of the Hub",
        ) from None
    if not len(rows):
        raise runtime.SetupError(f"`{place}` has no rows in split `{split}`", hint="look into the file")
    return rows


def encode_rows(rows: Dataset, tokenizer: Any, max_length: int, answers_only: bool) -> Dataset:
    """Return `input_ids` and `completion_mask` of each row, at most `max_length` tokens. A long text becomes several
    rows; a long conversation is cut off, and a row left without an answer is dropped."""
    encode = _encoder_of(set(rows.column_names), tokenizer)

    def encode_batch(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        result: dict[str, list[list[int]]] = {"input_ids": [], "completion_mask": []}
        for row in (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)):
            ids, mask = encode(row)
            pieces = range(0, len(ids), max_length) if "text" in row else [0]
            for start in pieces:
                cut = slice(start, start + max_length)
                shown = mask[cut] if answers_only else [1] * len(ids[cut])
                if any(shown[1:]):  # the first token of a row has nothing to be predicted from
                    result["input_ids"].append(ids[cut])
                    result["completion_mask"].append(shown)
        return result

    encoded = rows.map(encode_batch, batched=True, remove_columns=rows.column_names, load_from_cache_file=False)
    if not len(encoded):
        raise runtime.SetupError(
            f"no example has an answer within {max_length} tokens", hint="raise `--max_length`, or look at the examples"
        )
    return encoded


def _encoder_of(columns: set[str], tokenizer: Any) -> Callable[[dict[str, Any]], tuple[list[int], list[int]]]:
    """Return the function that makes tokens and mask of a row with these columns."""

    def of_chat(row: dict[str, Any]) -> tuple[list[int], list[int]]:
        if "messages" in row:
            return encode_chat(row["messages"], tokenizer)
        if isinstance(row["prompt"], list):
            return encode_chat([*row["prompt"], *row["completion"]], tokenizer, first=len(row["prompt"]))
        prompt = tokenizer(row["prompt"])["input_ids"]
        answer = tokenizer(row["completion"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        return prompt + answer, [0] * len(prompt) + [1] * len(answer)

    def of_text(row: dict[str, Any]) -> tuple[list[int], list[int]]:
        ids = tokenizer(row["text"])["input_ids"] + [tokenizer.eos_token_id]
        return ids, [1] * len(ids)

    if "messages" in columns or {"prompt", "completion"} <= columns:
        return of_chat
    if "text" in columns:
        return of_text
    raise runtime.SetupError(
        f"the examples have the columns {', '.join(f'`{name}`' for name in sorted(columns))}",
        hint="name them `messages`, `prompt` and `completion`, or `text`",
    )


def encode_chat(messages: list[dict[str, str]], tokenizer: Any, first: int = 0) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation up to its last answer, and a mask of the answers from message `first` on.

    An answer is what the template adds to the conversation before it, so every template will do. Where a template
    changes earlier answers (some drop their reasoning), only the last one is learned, as it would be generated.
    """
    if tokenizer.chat_template is None:
        raise runtime.SetupError(
            "the tokenizer has no chat template", hint="use an instruct model, or the columns `prompt` and `completion`"
        )

    def render(count: int, asks: bool) -> list[int]:
        return tokenizer.apply_chat_template(messages[:count], add_generation_prompt=asks, return_dict=True)["input_ids"]

    ids: list[int] = []
    mask: list[int] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or number < first:
            continue
        asked, whole = render(number, True), render(number + 1, False)
        before = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(asked, whole, strict=False))))
        earlier = mask if asked[: len(ids)] == ids else []
        mask = earlier + [0] * (before - len(earlier)) + [1] * (len(whole) - before)
        ids = whole
    return ids, mask
