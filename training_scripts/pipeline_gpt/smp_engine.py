"""Train with SageMaker's model parallel library, version 1: `--engine smp`.

`smdistributed.modelparallel` exists only in SageMaker's images up to PyTorch 2.0.0. This file follows its documented
interface (https://sagemaker.readthedocs.io/en/v2.199.0/api/training/smp_versions/latest/smd_model_parallel_pytorch.html)
and is tested with a stand-in of the calls it makes; with the library itself it was not run.

The library does by itself what the rest of this folder shows step by step: it cuts the model at the first step (into
`partitions`, balanced for `optimize: speed | memory`), cuts each batch into `microbatches`, runs them by its schedule
(`pipeline: simple | interleaved`), and averages gradients over microbatches and replicas (`ddp: true`). With
`tensor_parallel_degree` it divides the matrices of each layer, with `shard_optimizer_state` the replicas share AdamW's
moments, and with `fp16` it computes in fp16 and keeps weights to add to in fp32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from data import text_folder
from gpt import GPT, Shape, divided, loss_of, read_text, starts_at, windows_at
from optimizing import clip_gradients, learning_rate_at, make_adamw
from torch import Tensor

from cloudtrain import runtime

LOSS_SCALE = {
    "static_loss_scale": None,
    "dynamic_loss_scale": True,
    "dynamic_loss_args": {"scale_window": 1000, "min_scale": 1, "delayed_shift": 2},
}
"""How the library scales the loss for fp16: as much as gradients bear, and less after they were infinite."""

VALIDATED = 4
"""Batches of held-out text."""


def train_with_smp(config: Any) -> None:
    """Train to the last step, or until asked to stop. The job's `parameters` hold the library's settings."""
    try:
        import smdistributed.modelparallel.torch as smp
    except ModuleNotFoundError:
        raise runtime.SetupError(
            "`--engine smp` needs SageMaker's model parallel library, which only its images up to PyTorch 2.0 have",
            hint="leave `--engine` out: torch's own pipelining does the same",
        ) from None

    smp.init()
    runtime.watch_for_stop()
    device = (
        torch.device("cuda", smp.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    shape = Shape(config.layers, config.heads, config.width, config.context)
    train_text, held_out_text = divided(read_text(text_folder()), shape.context)
    is_fp16 = smp.state.cfg.fp16

    # The library divides the matrices that are made in this context, and gives them weights of its own.
    dtype = torch.float16 if is_fp16 else None
    with smp.model_creation(tensor_parallelism=smp.tp_size() > 1, dtype=dtype):
        whole = GPT(shape)
    whole.reset_parameters(config.seed)
    model = smp.DistributedModel(whole)
    if config.recompute != "none":
        for layer in model.get_module().model.layers.children():
            smp.set_activation_checkpointing(layer)
    adam = make_adamw(model.parameters(), config, fused=False)
    optimizer = smp.DistributedOptimizer(adam, **(LOSS_SCALE if is_fp16 else {}))

    @smp.step
    def forward_and_backward(inputs: Tensor, following: Tensor) -> Tensor:
        """One microbatch; the library calls it for each, with its part of the tensors."""
        loss = loss_of(model(inputs), following)
        model.backward(loss)
        return loss

    @smp.step
    def forward_only(inputs: Tensor, following: Tensor) -> Tensor:
        """One microbatch without a backward."""
        return loss_of(model(inputs), following)

    def batch_of(text: Tensor, step: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return this process's windows of a step. Processes that compute layers together have their own, too."""
        starts = starts_at(
            step, count=config.global_batch, text=text, context=shape.context, seed=seed
        )
        mine = starts.chunk(smp.dp_size())[smp.dp_rank()]
        inputs, following = windows_at(text, mine, shape.context)
        return inputs.to(device), following.to(device)

    def mean_of(outputs: Any) -> Tensor:
        """Return the mean over microbatches and processes."""
        loss: Tensor = outputs.reduce_mean().detach()
        dist.all_reduce(loss, group=smp.get_dp_process_group())
        return loss / smp.dp_size()

    @torch.no_grad()
    def validate(step: int) -> None:
        """Report the loss and the perplexity of text that is not learned, of the same windows each time."""
        model.eval()
        batches = [batch_of(held_out_text, number, seed=0) for number in range(VALIDATED)]
        losses = [mean_of(forward_only(*batch)).item() for batch in batches]
        model.train()
        loss = sum(losses) / len(losses)
        runtime.report(step=step, validation_loss=loss, perplexity=math.exp(loss))

    # Each process writes the part that it holds; which part that is, is part of the checkpoint. The
    # library loads the weights at the first step, when it has cut the model.
    folder = runtime.checkpoint_dir()
    first_step = 0
    if (folder / "newest").is_file():
        first_step = smp.resume_from_checkpoint(str(folder), partial=True)["step"]
        runtime.notice(f"resumed from step {first_step}")

    def save(step: int) -> None:
        smp.save_checkpoint(
            str(folder),
            tag=f"step_{step}",
            partial=True,
            model=model,
            optimizer=optimizer,
            user_content={"step": step},
            num_kept_partial_checkpoints=3,
        )

    for step in range(first_step, config.steps):
        for parameter_group in optimizer.param_groups:
            parameter_group["lr"] = learning_rate_at(step, config)
        optimizer.zero_grad()
        outputs = forward_and_backward(*batch_of(train_text, step, config.seed))
        if is_fp16:
            optimizer.clip_master_grads(config.clip)
        else:
            clip_gradients(list(model.local_parameters()), config.clip, smp.get_mp_process_group())
        optimizer.step()

        done = step + 1
        if done % config.report_every == 0 or done == first_step + 1:
            runtime.report(step=done, loss=mean_of(outputs))
        if done % config.checkpoint_every == 0 or done == config.steps:
            validate(done)
            save(done)
        if runtime.should_stop() and done < config.steps:
            save(done)
            runtime.exit_preempted(done)

    smp.save_checkpoint(str(runtime.model_dir()), tag="model.pt", partial=False, model=model)
