#!/usr/bin/python3
"""The peer of tools/bench/gpt-cpu.toml: the same GPT in PyTorch (Debian: python3-torch, libopenblas0-pthread), as
its users write it: modules, one qkv product, cross entropy on the logits, torch.optim.AdamW, clip_grad_norm_. PyTorch
1.13 has no fused attention on the CPU, so `--attention` offers the usual two forms.

Prints one line of JSON; tokens/s is the median over the iterations after the warm-up, data included.
"""
import argparse
import json
import math
import re
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HIDDEN, HEADS, SEQUENCE, BATCH, VOCAB = 6, 384, 6, 256, 8, 257


class Attention(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.proj = nn.Linear(HIDDEN, HIDDEN)
        later = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
        self.register_buffer("later", later)
        self.register_buffer("bias", torch.zeros(1, SEQUENCE, SEQUENCE).masked_fill(later, -math.inf))

    def forward(self, x):
        batch, sequence, _ = x.shape
        scale = 1.0 / math.sqrt(HIDDEN // HEADS)
        qkv = self.qkv(x).view(batch, sequence, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        if self.form == "baddbmm":
            q, k, v = qkv.reshape(3, batch * HEADS, sequence, -1)
            scores = torch.baddbmm(self.bias, q, k.transpose(1, 2), alpha=scale)
            y = torch.bmm(F.softmax(scores, dim=-1), v).view(batch, HEADS, sequence, -1)
        else:
            q, k, v = qkv
            scores = (q * scale) @ k.transpose(-2, -1)
            y = F.softmax(scores.masked_fill(self.later, -math.inf), dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, sequence, HIDDEN))


class Block(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.attention = Attention(form)
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.positions = nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.Sequential(*(Block(form) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, labels):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, VOCAB), labels.reshape(-1))


def make_optimizer(model, foreach):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, foreach=foreach)


def token_stream(prefix):
    """Tokens of an indexed data set (uint16), or random ones where no prefix is given."""
    if prefix:
        return np.memmap(prefix + ".bin", dtype=np.uint16, mode="r")
    return np.random.default_rng(0).integers(0, VOCAB, 1 << 20, dtype=np.uint16)


def draw_batch(stream, rng):
    starts = rng.integers(0, len(stream) - SEQUENCE - 1, BATCH)
    rows = np.stack([stream[start:start + SEQUENCE + 1] for start in starts]).astype(np.int64)
    rows = torch.from_numpy(rows)
    return rows[:, :-1], rows[:, 1:]


def matmul_gflops(size=2048, repeats=5):
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2e-9 * size ** 3 / min(times)


def loaded_blas():
    """Files of the BLAS and oneDNN libraries mapped by this process: a peer on the reference BLAS is 13 times slower."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if re.search(r"(blas|dnnl|mkl)[^/]*\.so", line)})


def train(options):
    torch.manual_seed(1)
    model = Gpt(options.attention)
    optimizer = make_optimizer(model, options.foreach)
    stream, rng = token_stream(options.data), np.random.default_rng(1)
    seconds, losses = [], []
    for _ in range(options.warmup + options.iterations):
        start = time.perf_counter()
        loss = model(*draw_batch(stream, rng))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[options.warmup:]), losses


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--attention", choices=("baddbmm", "masked_fill"), default="baddbmm")
    parser.add_argument("--foreach", action="store_true", help="AdamW over lists of tensors")
    parser.add_argument("--data", help="prefix of a .bin of 16-bit tokens; random tokens where not given")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    gflops = matmul_gflops()
    seconds, losses = train(options)
    print(json.dumps({"tokens_per_second": round(BATCH * SEQUENCE / seconds, 1), "iteration_ms": round(1e3 * seconds, 1),
                      "matmul_2048_gflops": round(gflops, 1), "threads": torch.get_num_threads(),
                      "torch": torch.__version__, "blas": loaded_blas(), "attention": options.attention,
                      "first_loss": round(losses[0], 4), "last_loss": round(losses[-1], 4)}))


if __name__ == "__main__":
    main()
