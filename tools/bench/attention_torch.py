#!/usr/bin/env python3
"""The peers of tools/bench-attention: attention in PyTorch, forward and backward, by CUDA events.

  python3 attention_torch.py 'NAME PEERS SHAPE' ['NAME PEERS SHAPE' ...]

SHAPE is one of `engine doctor --attention` (docs/cuda-backend.md), PEERS a comma list of
  cudnn   scaled_dot_product_attention by cuDNN: no mask or a causal one, dropout; a bias for each pair, without a mask
  cudnn-fixed  the same with biases that have no gradient
  flash   the same by FlashAttention 2
  flex    torch.compile of flex_attention, with a block mask and, for soft caps and biases, a score_mod: no dropout
For each NAME, peer and pass, a JSON object is printed behind the prefix RESULT: "ms", a median, or "why_not".
q, k and v are views of [B, S, H, E] tensors of normal numbers, as a projection leaves them.
"""
import argparse
import json
import math
import statistics
import sys
import time

ROUNDS = 5
ROUND_MS = 40
MOST_REPETITIONS = 200
SLOW_MS = 400  # what takes so long is timed once
MOST_SLEEP_S = 0.1
CLOCK_HZ = 2e9  # at most: how long torch.cuda._sleep holds the GPU up
DEFAULTS = {"batch": 1, "mask": "causal", "window": 0, "softcap": 0.0, "dropout": 0.0, "alibi": 0, "distance": 0, "pairs": 0, "sinks": 0, "packed": 0,
            "dtype": "bf16", "documents": ()}
FLOATS = {"softcap", "dropout"}
WORDS = {"mask", "dtype"}
PASSES = ("forward", "backward")


def parse_shape(text):
    """The keys of a SHAPE, whose mistakes `engine doctor` finds."""
    shape = dict(DEFAULTS)
    for word in text.split(","):
        key, _, value = word.partition("=")
        if key == "documents":
            shape[key] = tuple(int(length) for length in value.split("+"))
        elif key in WORDS:
            shape[key] = value
        else:
            shape[key] = float(value) if key in FLOATS else int(value or 1)
    shape.setdefault("kv_heads", shape["heads"])
    shape.setdefault("value_head", shape["head"])
    shape.setdefault("keys", shape["length"])
    return shape


def why_not(peer, shape):
    """In words; empty: the peer carries it out."""
    if peer == "flex":
        return "FlexAttention has no dropout" if shape["dropout"] else ""
    for key, words in (("window", "windows"), ("softcap", "soft caps"), ("alibi", "linear biases"),
                       ("distance", "biases by distance"), ("sinks", "sinks"),
                       ("documents", "documents")):
        if shape[key]:
            return f"scaled_dot_product_attention has no {words}"
    if shape["pairs"] and (peer == "flash" or shape["mask"] == "causal"):
        return "a bias for each pair is cuDNN's alone, without a mask"
    if shape["mask"] == "causal" and shape["keys"] != shape["length"]:
        return "its causal mask begins at the first key"
    return ""


def alibi_slopes(heads):
    """2^(−8·1/n), 2^(−8·2/n), … for n heads, a power of two; else every other one of 2n behind those of the largest below."""
    n = 2 ** int(math.log2(heads))
    return ([2.0 ** (-8 * (h + 1) / n) for h in range(n)] +
            [2.0 ** (-8 * (2 * h + 1) / (2 * n)) for h in range(heads - n)])


def document_numbers(lengths):
    return [number for number, length in enumerate(lengths) for _ in range(length)]


# -- the peers: functions of q, k, v, sinks and biases
def sdpa(torch, shape, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backend = SDPBackend.FLASH_ATTENTION if backend == "flash" else SDPBackend.CUDNN_ATTENTION

    def run(q, k, v, _, biases):
        bias = None if biases is None else biases[None, :, :shape["length"], :shape["keys"]]
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=shape["dropout"], is_causal=shape["mask"] == "causal",
                enable_gqa=shape["kv_heads"] != shape["heads"])
    return run


def flex(torch, shape, pairs):
    from torch.nn.attention import flex_attention as module
    length, keys = shape["length"], shape["keys"]
    behind, window, softcap = keys - length, shape["window"], shape["softcap"]
    document = torch.tensor(document_numbers(shape["documents"]) or [0] * keys, device="cuda", dtype=torch.int32)
    distance = shape["distance"]
    biases = torch.randn(shape["heads"], 2 * distance + 1, device="cuda", requires_grad=True)
    slopes = torch.tensor(alibi_slopes(shape["heads"]), device="cuda")
    causal, documents = shape["mask"] == "causal", bool(shape["documents"])

    def mask_mod(b, h, q, kv):
        seen = q + behind >= kv if causal else q >= 0
        if window:
            seen = seen & (q + behind - kv < window)
        if documents:
            seen = seen & (document[q] == document[kv])
        return seen

    def score_mod(score, b, h, q, kv):
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        if shape["alibi"]:
            score = score - slopes[h] * (q + behind - kv)
        if distance:
            score = score + biases[h, torch.clamp(kv - q - behind, -distance, distance) + distance]
        if pairs is not None:
            score = score + pairs[h, q + behind, kv]
        return score

    masked = causal or documents
    block_mask = torch.compile(module.create_block_mask)(mask_mod, None, None, length, keys, device="cuda") if masked else None
    options = {"block_mask": block_mask, "enable_gqa": shape["kv_heads"] != shape["heads"],
               "score_mod": score_mod if softcap or distance or shape["pairs"] or shape["alibi"] else None}

    def with_sinks(q, k, v, sinks, _):
        if hasattr(module, "AuxRequest"):
            o, auxiliary = module.flex_attention(q, k, v, return_aux=module.AuxRequest(lse=True), **options)
            lse = auxiliary.lse
        else:
            o, lse = module.flex_attention(q, k, v, return_lse=True, **options)
        return (o * torch.sigmoid(lse - sinks.float()[None, :, None]).unsqueeze(-1)).to(o.dtype)

    def plain(q, k, v, *_):
        return module.flex_attention(q, k, v, **options)

    torch._dynamo.reset()
    return torch.compile(with_sinks if shape["sinks"] else plain, dynamic=False)


# -- the timing
def elapsed_ms(torch, work, repetitions):
    """Of one repetition. The GPU is held up until all of them are enqueued, so that it never waits for the host."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    host_s = time.perf_counter() - begin
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(int(min(1.5 * host_s * repetitions + 5e-5, MOST_SLEEP_S) * CLOCK_HZ))
    start.record()
    for _ in range(repetitions):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repetitions


def repetitions_of(ms):
    return max(1, min(MOST_REPETITIONS, int(ROUND_MS / max(ms, 1e-3))))


def works(torch, shape, peer):
    """Pass → what enqueues it."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[shape["dtype"]]

    def tensor(tokens, heads, head):
        return torch.randn(shape["batch"], tokens, heads, head, device="cuda", dtype=dtype)

    q, k, v = (tensor(*sizes).transpose(1, 2).requires_grad_() for sizes in (
        (shape["length"], shape["heads"], shape["head"]), (shape["keys"], shape["kv_heads"], shape["head"]),
        (shape["keys"], shape["kv_heads"], shape["value_head"])))
    d_o = tensor(shape["length"], shape["heads"], shape["value_head"]).transpose(1, 2)
    sinks = torch.randn(shape["heads"], device="cuda", dtype=dtype).requires_grad_() if shape["sinks"] else None
    biases = None
    if shape["pairs"]:
        biases = torch.randn(shape["heads"], shape["pairs"], shape["pairs"], device="cuda", dtype=dtype)
        biases.requires_grad_(peer != "cudnn-fixed")
    run = flex(torch, shape, biases) if peer == "flex" else sdpa(torch, shape, peer)
    o = run(q, k, v, sinks, biases)
    inputs = [x for x in (q, k, v, sinks, biases) if x is not None and x.requires_grad]
    return {"forward": lambda: run(q, k, v, sinks, biases),
            "backward": lambda: torch.autograd.grad(o, inputs, d_o, retain_graph=True)}


def measure(torch, shape, peers):
    """(peer, pass) → {"ms"} or {"why_not"}; peers in turns."""
    results, timed = {}, {}
    for peer in peers:
        reason = why_not(peer, shape)
        try:
            if not reason:
                for which, work in works(torch, shape, peer).items():
                    work()  # compiles
                    elapsed_ms(torch, work, 1)
                    timed[peer, which] = work, [elapsed_ms(torch, work, 3)]
        except Exception as error:  # what PyTorch says of a shape or of memory
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
            for which in PASSES:
                timed.pop((peer, which), None)
        if reason:
            results |= {(peer, which): {"why_not": reason} for which in PASSES}
    for _ in range(ROUNDS):
        for work, times in timed.values():
            if times[0] < SLOW_MS:
                times.append(elapsed_ms(torch, work, repetitions_of(times[0])))
    for key, (_, times) in timed.items():
        results[key] = {"ms": statistics.median(times[1:] or times)}
    return results


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cases", nargs="+", metavar="CASE", help="'NAME PEERS SHAPE'")
    options = p.parse_args()
    import torch
    import torch._functorch.config
    torch._dynamo.config.cache_size_limit = 128
    torch._functorch.config.donated_buffer = False  # a backward pass is repeated on one forward pass's tensors
    for words in options.cases:
        name, peers, text = words.split(" ")
        for (peer, which), result in measure(torch, parse_shape(text), peers.split(",")).items():
            print("RESULT " + json.dumps({"case": name, "peer": peer, "pass": which} | result), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
