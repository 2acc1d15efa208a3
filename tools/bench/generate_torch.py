#!/usr/bin/env python3
"""Times one more token of each of several sequences by Hugging Face transformers, in bf16 with weights that are drawn, in two
ways. A peer of tools/bench-generate.

  tools/bench/generate_torch.py gpt2-124m|llama3-8b CONTEXT BATCH…

  step      the model's forward pass over a static cache and the likeliest token, compiled with CUDA graphs (torch.compile, mode
            "reduce-overhead") and called in a loop; tokens stay on the device, and none is fed back or drawn
  generate  what a user of the library calls, model.generate(cache_implementation="static", do_sample=True, top_k=50), which
            compiles the forward pass in the same way: the time of 64 tokens less that of the first 16 of them, so that the
            prompt and the recording of graphs do not count

Prints a line a batch: MODEL batch B at N tokens: X ms, generate Y ms. Sequences have 64 tokens less than the context. Where
generate fails, Y is nan and standard error says why.
"""
import sys
import time
import traceback

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, StaticCache, StoppingCriteriaList

STEPS = 20
TOKENS = 64  # that are generated
FIRST = 16
CONFIGS = {
    "gpt2-124m": lambda: GPT2Config(n_positions=1024),
    "llama3-8b": lambda: LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                                     num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                                     max_position_embeddings=8192, rope_theta=5e5),
}


def milliseconds_of_step(model, config, batch, context):
    tokens = context - TOKENS
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
    return (time.time() - begin) / STEPS * 1e3


def milliseconds_of_generate(model, batch, context):
    prompt = torch.ones(batch, context - TOKENS, dtype=torch.long, device="cuda")

    def seconds(tokens):
        def is_done(ids, *_, **__):
            done = ids.shape[1] >= prompt.shape[1] + tokens
            return torch.full((batch,), done, dtype=torch.bool, device="cuda")

        torch.cuda.synchronize()
        begin = time.time()
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS,
                             cache_implementation="static", do_sample=True, top_k=50, pad_token_id=0,
                             stopping_criteria=StoppingCriteriaList([is_done]))
        torch.cuda.synchronize()
        assert ids.shape == (batch, prompt.shape[1] + tokens), ids.shape
        return time.time() - begin

    seconds(TOKENS)  # compiles
    seconds(FIRST)
    return min((seconds(TOKENS) - seconds(FIRST)) / (TOKENS - FIRST) for _ in range(3)) * 1e3


@torch.no_grad()
def main():
    name, context, batches = sys.argv[1], int(sys.argv[2]), [int(b) for b in sys.argv[3:]]
    config = CONFIGS[name]()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = None
    for batch in batches:
        step = milliseconds_of_step(model, config, batch, context)
        torch._dynamo.reset()
        try:
            whole = milliseconds_of_generate(model, batch, context)
        except Exception:  # the other figure stands by itself
            traceback.print_exc()
            whole = float("nan")
        torch._dynamo.reset()
        print(f"{name} batch {batch} at {context - TOKENS} tokens: {step:.3f} ms, generate {whole:.3f} ms",
              flush=True)


if __name__ == "__main__":
    main()
