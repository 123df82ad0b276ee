"""Whether the memory of a rank fits a GPU: what was counted, and what a GPU needs besides; and what
closed formulas say of a transformer, for scripts that cannot be run without memory.

The formulas are ZeRO's for the states of a model (arXiv 1910.02054), in mixed precision with Adam,
and those of Korthikanti et al. for activations (arXiv 2205.05198) with flash attention, as
Megatron-LM counts them. Both are for the dense decoders that `config.json` files of Hugging Face
describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from cloudtrain.documents import JsonMapping
from cloudtrain.errors import UsageError

Verdict = Literal["fits", "tight", "does not fit"]

CONTEXT = 0.75 * 2**30
"""Bytes of the CUDA context, its libraries' workspaces and NCCL's buffers that every rank has. None
of them is a tensor."""

COUNTED_OF_RESERVED = 0.83
"""The least share of the memory that a GPU's allocator reserved which the counted tensors made up,
in torchtitan's published peaks (Llama 3.1 8B, FSDP, on 8 and 128 H100: 0.83 and 0.87). The rest are
gaps between tensors, the context and buffers of NCCL."""


class Need(NamedTuple):
    """The bytes that a rank needs: at least, and with the largest margin."""

    least: float
    most: float

    @classmethod
    def of(cls, counted: int) -> Need:
        """Return the need of a rank whose tensors have `counted` bytes at their peak."""
        least = counted + CONTEXT
        return cls(least, max(least, counted / COUNTED_OF_RESERVED))

    def verdict(self, memory: float) -> Verdict:
        """Return whether the rank fits into `memory` bytes."""
        if self.most <= memory:
            return "fits"
        return "tight" if self.least <= memory else "does not fit"


# Closed formulas.

Recompute = Literal["none", "full"]

_NAMES = {
    "width": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "vocabulary": ("vocab_size",),
}
"""Numbers of a model, each with its names in the files of different families."""

_GATED = ("silu", "swiglu", "geglu")

_BYTES_OF_A_LOGIT = 12
"""Logits in bf16, their copy in fp32, and what the cross entropy keeps of them. A dry run of Llama
3.1 8B held 23.5 GiB for 16,384 tokens of 128,256 words."""


class Decoder(NamedTuple):
    """The numbers of a decoder. `gated`: its feed-forward has three matrices."""

    width: int
    layers: int
    heads: int
    kv_width: int
    feed_width: int
    vocabulary: int
    gated: bool
    tied: bool

    @classmethod
    def of_config(cls, config: JsonMapping) -> Decoder:
        """Return the model of a `config.json`.

        Raises:
            UsageError: a number is missing, or the model is no dense decoder.
        """
        config = config.get("text_config") or config
        numbers: dict[str, int] = {}
        for name, keys in _NAMES.items():
            found = [config[key] for key in keys if isinstance(config.get(key), int)]
            if not found:
                hint = "name the `config.json` of a decoder, such as a Llama, a Qwen or a GPT-2"
                raise UsageError(f"the file has no `{keys[0]}`", hint=hint, code="CT948")
            numbers[name] = found[0]
        for key in ("num_local_experts", "num_experts", "n_routed_experts"):
            if (config.get(key) or 0) > 1:
                hint = "run the script itself: `cloudtrain fit job.yaml`"
                message = f"the formulas are of dense models, and `{key}` is {config[key]}"
                raise UsageError(message, hint=hint, code="CT948")

        width = numbers["width"]
        head_width = config.get("head_dim") or width // numbers["heads"]
        kv_heads = config.get("num_key_value_heads") or numbers["heads"]
        activation = str(config.get("hidden_act") or config.get("activation_function") or "")
        return cls(
            width,
            numbers["layers"],
            numbers["heads"],
            kv_heads * head_width,
            config.get("intermediate_size") or config.get("n_inner") or 4 * width,
            numbers["vocabulary"],
            activation in _GATED,
            bool(config.get("tie_word_embeddings", config.get("model_type") == "gpt2")),
        )

    @property
    def of_layer(self) -> int:
        """The parameters of a layer."""
        attention = 2 * self.width * (self.width + self.kv_width)
        matrices = 3 if self.gated else 2
        return attention + matrices * self.width * self.feed_width + 2 * self.width

    @property
    def parameters(self) -> int:
        """All parameters of the model."""
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        return embeddings + self.layers * self.of_layer + self.width


class Training(NamedTuple):
    """How a model is trained: ranks along `data` share its states by a `zero` stage (3 is FSDP),
    ranks along `tensor` divide its layers. A rank has `batch` windows of `context` tokens."""

    data: int
    batch: int
    context: int
    zero: int = 3
    tensor: int = 1
    recompute: Recompute = "none"

    @classmethod
    def of(cls, values: Mapping[str, str], ranks: int) -> Training:
        """Return the training that texts such as `{"zero": "3"}` describe, on so many ranks.

        Raises:
            UsageError: a name or a number is wrong.
        """
        numbers = {"batch": 1, "context": 2048, "zero": 3, "tensor": 1}
        recompute: Recompute = "none"
        for name, text in values.items():
            if name == "recompute" and text in ("none", "full"):
                recompute = "full" if text == "full" else "none"
            elif name in numbers and text.isdecimal() and (int(text) or name == "zero"):
                numbers[name] = int(text)
            else:
                hint = (
                    "write `batch=1 context=4096 zero=3 tensor=1 recompute=none`, or a part of it"
                )
                message = f"`{name}={text}` is no number of a training"
                raise UsageError(message, hint=hint, code="CT948")
        if ranks % numbers["tensor"] or numbers["zero"] > 3:
            hint = f"`tensor` divides the {ranks} ranks of the job, and `zero` is 0 to 3"
            raise UsageError("the ranks cannot be divided so", hint=hint, code="CT948")
        return cls(ranks // numbers["tensor"], recompute=recompute, **numbers)

    def __str__(self) -> str:
        return (
            f"ZeRO stage {self.zero} over {self.data} ranks, tensor parallel {self.tensor}, "
            f"{self.batch} x {self.context:,} tokens, recomputed: {self.recompute}"
        )


def kinds_of(model: Decoder, training: Training) -> dict[str, int]:
    """Return the bytes of a rank by kind."""
    held = model.parameters / training.tensor
    share = held / training.data
    stage = training.zero
    weights = 2 * (share if stage >= 3 else held)
    gradients = 2 * (share if stage >= 2 else held)
    optimizer = 12 * (share if stage >= 1 else held)
    gathered = 2 * 2 * model.of_layer / training.tensor if stage >= 3 else 0.0
    return {
        "parameters": int(weights),
        "gradients": int(gradients),
        "optimizer": int(optimizer),
        "activations": int(_activations(model, training)),
        "communication": int(gathered),
    }


def _activations(model: Decoder, training: Training) -> float:
    tokens = training.batch * training.context
    ratio = model.feed_width / model.width
    # a gated feed-forward keeps both halves, the gate and the product: a dry run of LLaMA-7B kept
    # 45 bytes for each token and unit of width
    divided = 8 + (10 if model.gated else 4) * ratio
    of_layer = tokens * model.width * (10 + divided / training.tensor)
    logits = tokens * model.vocabulary * _BYTES_OF_A_LOGIT / training.tensor
    if training.recompute == "full":
        return 2 * tokens * model.width * model.layers + of_layer + logits
    return model.layers * of_layer + logits
