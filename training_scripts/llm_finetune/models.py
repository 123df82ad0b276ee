"""The model and the tokenizer: read, made tiny, merged with an adapter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers import PreTrainedTokenizerFast as FastTokenizer

from cloudtrain import runtime

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def read_tokenizer(place: str) -> Any:
    """Return the tokenizer, with a token to pad with."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise runtime.SetupError(
            f"`{place}` has no tokenizer that can be read: {str(error).splitlines()[0]}",
            hint="give a folder that `save_pretrained` wrote, or a name of the Hub; if it is gated, set `HF_TOKEN`",
        ) from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def read_model(
    place: str, dtype: torch.dtype, attention: str, device: torch.device, in_4bit: bool
) -> Any:
    """Return the model. With `in_4bit` its matrices are quantized (nf4), and on the device."""
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": attention}
    if in_4bit:
        options["device_map"] = {"": device.index if device.type == "cuda" else device.type}
        nf4 = {
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": dtype,
        }
        options["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, **nf4)
    return AutoModelForCausalLM.from_pretrained(place, **options)


def read_on_one(place: str, dtype: torch.dtype, attention: str) -> Any:
    """Return the model with its weights on the first process. On the others nobody writes into the memory of the weights,
    so the system gives it none; accelerate sends each process its share. The few numbers beside the weights, such as
    those of rotary positions, are everywhere."""
    if dist.get_rank() == 0:
        model = read_model(place, dtype, attention, torch.device("cpu"), in_4bit=False)
    else:
        shape = AutoConfig.from_pretrained(place)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                shape, dtype=dtype, attn_implementation=attention
            )
        model.to_empty(device="cpu")
        model.tie_weights()
    box: list[Any] = [dict(model.named_buffers())]
    dist.broadcast_object_list(box, src=0)
    for name, numbers in box[0].items():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, numbers)
    return model


def make_tiny(folder: Path, pairs: Iterable[dict[str, Any]], seed: int) -> None:
    """Write a random Llama of 3.3 million weights, and a tokenizer of 2,048 tokens made from their texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special, alphabet = (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(
        (message["content"] for pair in pairs for message in pair["messages"]), trainer
    )
    tokenizer = FastTokenizer(
        tokenizer_object=made, eos_token=special[2], pad_token=special[0], model_max_length=2048
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=2048, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def merge_adapter(place: str, adapter: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the model at `place` with the adapter's product added to its weights, so that it needs no peft."""
    base = AutoModelForCausalLM.from_pretrained(place, dtype=dtype)
    PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(adapter)).save_pretrained(folder)
