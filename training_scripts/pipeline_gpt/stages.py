"""A pipeline stage that hands tensors to a neighbouring stage of the same process instead of sending them.

In a V-shaped schedule the last stage on the way down and the first on the way back are on one process. torch from 2.10
on avoids messages between them during training, but still sends every neighbour a message at the start; before 2.10 it
sends everything. NCCL delivers a message to its sender; gloo has no such connection and fails: "Pair is not connected".
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage


class Stage(PipelineStage):
    """A pipeline stage. `here` are the stages of this process, by number."""

    here: dict[int, Stage]

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return the operations that send activations to the next stage."""
        after = self.here.get(self.stage_index + 1)
        if after is None:
            return super().get_fwd_send_ops(fwd_chunk_id)
        outputs, _ = self.fwd_cache[fwd_chunk_id]
        after.set_local_fwd_input(outputs, fwd_chunk_id)
        return []

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Return the operations that receive activations from the stage before."""
        return [] if self.stage_index - 1 in self.here else super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return the operations that send gradients to the stage before."""
        before = self.here.get(self.stage_index - 1)
        if before is None:
            return super().get_bwd_send_ops(bwd_chunk_id)
        before.set_local_bwd_input(self.get_local_bwd_output(bwd_chunk_id), bwd_chunk_id)
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Return the operations that receive gradients from the next stage."""
        return [] if self.stage_index + 1 in self.here else super().get_bwd_recv_ops(bwd_chunk_id)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Return the first message to every neighbour (torch 2.9 to 2.12)."""
        ops: Any = super()._get_init_p2p_neighbors_ops()
        return [op for op in ops if op.peer != dist.get_rank()]
