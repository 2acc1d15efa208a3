#!/usr/bin/env python3
"""Times one more token of each of several sequences by Hugging Face transformers: a static cache, the step compiled with CUDA
graphs (torch.compile, mode "reduce-overhead"), bf16, weights that are drawn. A peer of tools/bench-generate.

  tools/bench/generate_torch.py gpt2-124m|llama3-8b CONTEXT BATCH…

Prints a line a batch: MODEL batch B at N tokens: X ms. Sequences have 64 tokens less than the context.
"""
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, StaticCache

STEPS = 20
CONFIGS = {
    "gpt2-124m": lambda: GPT2Config(n_positions=1024),
    "llama3-8b": lambda: LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                                     num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                                     max_position_embeddings=8192, rope_theta=5e5),
}


@torch.no_grad()
def main():
    name, context, batches = sys.argv[1], int(sys.argv[2]), [int(b) for b in sys.argv[3:]]
    config = CONFIGS[name]()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    torch.set_default_dtype(torch.float32)
    tokens = context - 64
    for batch in batches:
        cache = StaticCache(config=config, max_batch_size=batch, max_cache_len=context, device="cuda",
                            dtype=torch.bfloat16)
        prompt = torch.ones(batch, tokens, dtype=torch.long, device="cuda")
        model(prompt, past_key_values=cache, cache_position=torch.arange(tokens, device="cuda"), use_cache=True,
              logits_to_keep=1)
        step = torch.compile(
            lambda ids, at: model(ids, past_key_values=cache, cache_position=at, use_cache=True).logits.argmax(-1),
            mode="reduce-overhead")
        token = torch.full((batch, 1), 5, dtype=torch.long, device="cuda")
        position = torch.tensor([tokens], device="cuda")
        for _ in range(6):
            step(token.clone(), position.clone())
        torch.cuda.synchronize()
        begin = time.time()
        for _ in range(STEPS):
            torch.compiler.cudagraph_mark_step_begin()
            step(token, position)
        torch.cuda.synchronize()
        print(f"{name} batch {batch} at {tokens} tokens: {(time.time() - begin) / STEPS * 1e3:.3f} ms", flush=True)
        del cache
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
