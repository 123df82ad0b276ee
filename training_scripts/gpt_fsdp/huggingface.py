"""Models as transformers saves them: `config.json`, weights in safetensors, the tokenizer. Read and written in every
layout, without any library of Hugging Face, because the names of the parameters are the same.

A file of safetensors is the length of a header (8 bytes), the header (JSON: each tensor's type, shape and bytes), and
the bytes of the tensors. Each process maps the files into memory, so it reads only the part that it trains. When the
model is written, it is gathered tensor by tensor: no process ever holds more than one whole tensor.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gpt import GPT, Shape
from layouts import fill, whole
from torch import Tensor

from cloudtrain.runtime import SetupError, input_dir, notice

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja",
)  # fmt: skip

FILE_BYTES = 5 * 10**9
"""Bytes of one file of weights, about; transformers divides at the same size."""

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def read_config(folder: Path) -> dict[str, Any]:
    """Return `config.json`.

    Raises:
        SetupError: it is not there, or says something that this decoder does not do.
    """
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        raise SetupError(
            f"`{path}` cannot be read",
            hint="give a folder that transformers' `save_pretrained` wrote",
        ) from None
    for found, why in _unable(config):
        raise SetupError(f"`{path}`: this decoder cannot do {found}", hint=why)
    return config


def _unable(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what the model does that this decoder does not. It would train without an error, and be another model."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        yield f"`model_type` {kind!r}", f"it can do {', '.join(ARCHITECTURES)}"
    rope = config.get("rope_parameters") or {}
    for name, scaling in (
        ("rope_scaling", config.get("rope_scaling") or {}),
        ("rope_parameters", rope),
    ):
        type_ = scaling.get("rope_type") or scaling.get("type") or "default"
        if type_ != "default":
            yield (
                f"`{name}` {type_!r}",
                "take a model with plain RoPE: Llama 3.1 and newer scale it",
            )
        if scaling.get("partial_rotary_factor", 1.0) != 1.0:
            yield f"`{name}` with `partial_rotary_factor`", "take a model that rotates whole heads"
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        yield "`use_sliding_window`", "take a model whose layers see the whole context"
    usual = {
        "hidden_act": "silu",
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "quantization_config": None,
    }
    if kind != "qwen2":
        usual["attention_bias"] = False
    for name, value in usual.items():
        if config.get(name, value) not in (value, None):
            yield f"`{name}` {config[name]!r}", f"take a model with {value!r} there"


def shape_in(folder: Path) -> dict[str, Any]:
    """Return the options of the shape in `config.json`, but for the context, which training may choose."""
    config = read_config(folder)
    rope = config.get("rope_parameters") or {}
    heads = config["num_attention_heads"]
    return {
        "family": config["model_type"],
        "layers": config["num_hidden_layers"],
        "heads": heads,
        "width": config["hidden_size"],
        "vocabulary": config["vocab_size"],
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_width": config.get("head_dim") or config["hidden_size"] // heads,
        "feed_width": config["intermediate_size"],
        "rope_theta": float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "tied": bool(config.get("tie_word_embeddings", False)),
    }


def start_of(config: Any, usual: Any) -> Path | None:
    """Return the folder from which training begins, `--init_from` or the job's input `base`, and give the options its
    shape; None if there is none. `usual` has the options that nobody gave.

    Raises:
        SetupError: an option contradicts the folder, or the export cannot be opened.
    """
    try:
        start = Path(config.init_from) if config.init_from else input_dir("base")
    except SetupError:
        start = None
    for option, value in (shape_in(start) if start else {}).items():
        given = getattr(config, option)
        if given not in (value, getattr(usual, option)):
            raise SetupError(
                f"`--{option} {given}` is not the shape in `{start}`, which has {value}",
                hint=f"leave `--{option}` out",
            )
        setattr(config, option, value)
    if config.export and config.family == "gpt2":
        raise SetupError(
            "transformers' GPT-2 has biases and other names, so it cannot open this one",
            hint="add `--family llama`, or leave `--export` out",
        )
    return start


def config_of(shape: Shape, start: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return `config.json` of a model. What `start`, the model from which training began, says beside its shape stays:
    tokens of begin and end. transformers 5 reads `rope_parameters`, transformers 4 `rope_theta`."""
    rope = {"rope_type": "default", "rope_theta": shape.rope_theta}
    return {
        "bos_token_id": None, "eos_token_id": None, "use_cache": True, "attention_bias": shape.family == "qwen2",
        "mlp_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, **(start or {}),
        "architectures": [ARCHITECTURES[shape.family]], "model_type": shape.family, "hidden_act": "silu",
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "hidden_size": shape.width,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_width, "intermediate_size": shape.feed_width,
        "vocab_size": shape.vocabulary, "rms_norm_eps": shape.norm_eps, "tie_word_embeddings": shape.tied,
        "max_position_embeddings": max(shape.context, (start or {}).get("max_position_embeddings", 0)),
        "rope_theta": shape.rope_theta, "rope_parameters": rope, "rope_scaling": None,
        "dtype": "float32", "torch_dtype": "float32",
    }  # fmt: skip


# Weights


def stored_in(folder: Path) -> dict[str, Tensor]:
    """Map the names of all tensors in the folder's files to tensors that are read where they are used."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SetupError(
            f"`{folder}` has no weights in safetensors",
            hint="save it with `save_pretrained`, which writes them",
        )
    found: dict[str, Tensor] = {}
    for path in files:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        start = 8 + int.from_bytes(mapped[:8], "little")
        try:
            header = json.loads(mapped[8:start])
            for name, entry in header.items():
                if name != "__metadata__":
                    found[name] = _tensor(mapped, start, entry)
        except (ValueError, KeyError, TypeError) as error:
            raise SetupError(
                f"`{path}` is not a whole file of safetensors: {error}", hint="copy it again"
            ) from None
    return found


def _tensor(mapped: mmap.mmap, start: int, entry: dict[str, Any]) -> Tensor:
    first, end = entry["data_offsets"]
    kind, size = TYPES[entry["dtype"]], tuple(entry["shape"])
    if end == first:
        return torch.empty(size, dtype=kind)
    raw = torch.frombuffer(mapped, dtype=torch.uint8, count=end - first, offset=start + first)
    return (
        raw.view(kind).view(size)
        if (start + first) % kind.itemsize == 0
        else raw.clone().view(kind).view(size)
    )


def read_weights(model: GPT, folder: Path) -> None:
    """Fill this process's parts of the parameters, of the whole model or of some of its blocks.

    Raises:
        SetupError: a tensor is missing, has another shape, or is not a part of the model.
    """
    stored, named = stored_in(folder), dict(model.named_parameters())
    if model.shape.tied:
        stored.pop(HEAD, None)
    ignored = ("rotary_emb.inv_freq",)  # computed; old files have it
    with torch.device("meta"):
        whole_model = dict(GPT(model.shape).named_parameters())
    extra = [name for name in stored if name not in whole_model and not name.endswith(ignored)]
    missing = [name for name in named if name not in stored]
    if missing or extra:
        what = (
            f"lacks `{missing[0]}`"
            if missing
            else f"has `{extra[0]}`, which is no part of the model"
        )
        raise SetupError(
            f"`{folder}` {what}", hint="its `config.json` and its weights are of different models"
        )
    for name, parameter in named.items():
        if stored[name].shape != parameter.shape:
            sizes = f"{tuple(stored[name].shape)} instead of {tuple(parameter.shape)}"
            raise SetupError(
                f"`{folder}`: `{name}` has the shape {sizes}", hint="copy `config.json` again"
            )
        fill(parameter, stored[name])


def export(
    named: dict[str, Any],
    shape: Shape,
    folder: Path,
    start: Path | None = None,
    tokenizer: Path | None = None,
    *,
    is_main: bool = True,
) -> None:
    """Write a model's parameters as `from_pretrained` opens them. Where they are spread, all processes call it, and the
    main one writes. Files of the tokenizer come from `tokenizer`, else from `start`, the folder from which training
    began."""
    files = _divided(named)
    index: dict[str, str] = {}
    if is_main:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.safetensors*"):
            old.unlink()
    for number, names in enumerate(files, 1):
        file = (
            "model.safetensors"
            if len(files) == 1
            else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        )
        index |= dict.fromkeys(names, file)
        _write_file(folder / file, {name: named[name] for name in names}, is_main)
    if is_main:
        if len(files) > 1:
            size = sum(4 * parameter.numel() for parameter in named.values())
            listed = {"metadata": {"total_size": size}, "weight_map": index}
            (folder / "model.safetensors.index.json").write_text(json.dumps(listed, indent=2))
        known = read_config(start) if start else None
        (folder / "config.json").write_text(json.dumps(config_of(shape, known), indent=2) + "\n")
        copy_tokenizer([tokenizer, start], folder)
        if start and (start / "generation_config.json").is_file():
            shutil.copyfile(start / "generation_config.json", folder / "generation_config.json")


def copy_tokenizer(sources: list[Path | None], folder: Path) -> None:
    """Copy the files of a tokenizer from the first folder that has them."""
    found = [
        [source / name for name in TOKENIZER if (source / name).is_file()]
        for source in sources
        if source
    ]
    paths = next((each for each in found if each), [])
    for path in paths:
        if not (folder / path.name).exists() or not path.samefile(folder / path.name):
            shutil.copyfile(path, folder / path.name)
    if not paths:
        notice(f"`{folder}` has no tokenizer: tokens are bytes, or were made elsewhere")


def _divided(named: dict[str, Any]) -> list[list[str]]:
    """Return the names of the tensors of each file."""
    files: list[list[str]] = [[]]
    filled = 0
    for name, parameter in named.items():
        size = 4 * parameter.numel()
        if files[-1] and filled + size > FILE_BYTES:
            files.append([])
            filled = 0
        files[-1].append(name)
        filled += size
    return files


def _write_file(path: Path, named: dict[str, Any], is_main: bool) -> None:
    """Write one file. It gets its name when it is complete."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, parameter in named.items():
        end = offset + 4 * parameter.numel()
        header[name] = {
            "dtype": "F32",
            "shape": list(parameter.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    aside = path.with_name(f".{path.name}.writing")
    file = aside.open("wb") if is_main else None
    if file:
        file.write(len(text).to_bytes(8, "little") + text)
    for parameter in named.values():
        tensor = whole(parameter.detach())
        if file:
            file.write(tensor.float().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    if file:
        file.close()
        aside.replace(path)
