# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model of half a megabyte for llama-server: two layers of random weights and a tokenizer of single bytes."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 2, 128, 2048
ALIGN = 32
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _scalar(kind: int, value: Any) -> bytes:
    return _string(value) if kind == STRING else struct.pack({U32: "<I", F32: "<f", I32: "<i"}[kind], value)


def _pair(key: str, kind: int, value: Any) -> bytes:
    head = _string(key)
    if isinstance(value, list):
        items = b"".join(_scalar(kind, item) for item in value)
        return head + struct.pack("<IIQ", ARRAY, kind, len(value)) + items
    return head + struct.pack("<I", kind) + _scalar(kind, value)


def write(path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3] + [6] * 256  # unknown, control, bytes
    pairs = [
        _pair("general.architecture", STRING, "llama"),
        _pair("llama.context_length", U32, CONTEXT),
        _pair("llama.embedding_length", U32, WIDTH),
        _pair("llama.block_count", U32, LAYERS),
        _pair("llama.feed_forward_length", U32, INNER),
        _pair("llama.attention.head_count", U32, HEADS),
        _pair("llama.attention.head_count_kv", U32, HEADS),
        _pair("llama.rope.dimension_count", U32, WIDTH // HEADS),
        _pair("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        _pair("tokenizer.ggml.model", STRING, "llama"),
        _pair("tokenizer.ggml.tokens", STRING, tokens),
        _pair("tokenizer.ggml.scores", F32, [0.0] * len(tokens)),
        _pair("tokenizer.ggml.token_type", I32, kinds),
        _pair("tokenizer.ggml.bos_token_id", U32, 1),
        _pair("tokenizer.ggml.eos_token_id", U32, 2),
        _pair("tokenizer.ggml.unknown_token_id", U32, 0),
    ]
    shapes = {"token_embd.weight": (WIDTH, len(tokens)), "output_norm.weight": (WIDTH,)}
    shapes["output.weight"] = (WIDTH, len(tokens))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        shapes |= {block + name + ".weight": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {block + name + ".weight": (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {block + name + ".weight": (WIDTH, INNER) for name in ("ffn_gate", "ffn_up")}
        shapes[block + "ffn_down.weight"] = (INNER, WIDTH)
    dice = random.Random(7)
    infos, data = [], bytearray()
    for name, shape in shapes.items():
        size = 1
        for side in shape:
            size *= side
        infos.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data)))
        norm = len(shape) == 1
        data += struct.pack(f"<{size}f", *(1.0 if norm else dice.gauss(0, 0.05) for _turn in range(size)))
        data += b"\0" * (-len(data) % ALIGN)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(pairs)) + b"".join(pairs) + b"".join(infos)
    path.write_bytes(head + b"\0" * (-len(head) % ALIGN) + bytes(data))
