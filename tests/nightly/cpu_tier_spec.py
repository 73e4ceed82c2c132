# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets vLLM's tiering run on a machine without a GPU: its spec with one thing replaced, the copy between GPU and host.

vLLM loads it as a plugin in each of its processes. Hashing, scheduling, the memory tier, the file tier and its names
stay the engine's own.
"""

from __future__ import annotations

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class PlainCopies(OffloadingWorker):
    """Copies pages at once, where the engine's worker would queue them on a CUDA stream."""

    def __init__(self, kv_caches, blocks_per_chunk, region):
        self.per_chunk, self.references, self.region = blocks_per_chunk, kv_caches.group_data_refs, region
        self.device = [one.tensor.view(torch.int8).view(-1, one.page_size_bytes) for one in kv_caches.tensors]
        self.host = [
            region.create_next_worker_view(one.page_size_bytes * blocks_per_chunk) for one in kv_caches.tensors
        ]
        self.finished = []

    def _pages(self, device_spec, host_spec):
        """Pairs of a page on the device and its place in the host's memory."""
        device_at = host_at = 0
        for count, first, references in zip(
            device_spec.group_sizes, device_spec.block_indices, self.references, strict=False
        ):
            if not count:
                continue
            offset = first % self.per_chunk
            for number in range(count):
                chunk, place = divmod(offset + number, self.per_chunk)
                for one in references:
                    pages, size = self.device[one.tensor_idx], one.page_size_bytes
                    start = place * pages.shape[1]
                    memory = self.host[one.tensor_idx][int(host_spec.block_ids[host_at + chunk])]
                    page = pages[int(device_spec.block_ids[device_at + number])][:size]
                    yield page, memory[start : start + size], size
            device_at += count
            host_at += -(-(offset + count) // self.per_chunk)

    def _copy(self, job_id, device_spec, host_spec, to_host):
        total = 0
        for page, memory, size in self._pages(device_spec, host_spec):
            if to_host:
                memory.copy_(page)
            else:
                page.copy_(memory)
            total += size
        self.finished.append(TransferResult(job_id=job_id, success=True, transfer_size=total, transfer_time=1e-6))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, dst_spec, src_spec, False)

    def get_finished(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.device = self.host = []
        self.region.cleanup()


class CpuTieringOffloadingSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:  # type: ignore[has-type]
            # 0.29 counts blocks, 0.32 chunks.
            chunks = hasattr(self, "num_chunks")
            sizes = {
                "num_chunks" if chunks else "num_blocks": self.num_chunks if chunks else self.num_blocks,
                "kv_bytes_per_chunk" if chunks else "kv_bytes_per_block": self.kv_bytes_per_chunk,
            }
            region = SharedOffloadRegion(
                engine_id=self._engine_id, rank=0, cpu_page_size=self.cpu_page_size_per_worker, **sizes
            )
            self._worker = PlainCopies(kv_caches, self.blocks_per_chunk, region)
        return self._worker


def register():
    """What the entry point names."""
    OffloadingSpecFactory._registry["TieringOffloadingSpec"] = lambda: CpuTieringOffloadingSpec
