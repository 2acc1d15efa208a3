#!/usr/bin/env python3
"""The peer of the GPT-2 cases of tools/bench-gpu: a training step in plain PyTorch, as its users make it fast. Several
configurations per process.

  python3 gpt2_torch.py CONFIG [CONFIG ...] [--micro 32 --steps 25 --warmup 6 ...]
  torchrun --standalone --nproc_per_node=2 gpt2_torch.py ddp,block,amp,cudnn,chunk --micro 32

CONFIG is a comma list; the words not given take the first of each row:
  compile   eager | block | full      torch.compile off / per transformer block + head / whole model
  precision amp | master              bf16 autocast over fp32 parameters / bf16 parameters and gradients
                                      with fp32 master weights
  attention cudnn | flash | efficient the one SDPA backend left enabled
  loss      plain | chunk             F.cross_entropy on all logits / chunked head + loss (Triton)
  dropout   (none) | dropout          0.1 of attention's probabilities, of what branches add, and of embeddings
  parallel  ddp | tp | tpsp           with torchrun only: data parallel, tensor parallel, tensor parallel
                                      with sequence parallel (DTensor); "headc" compiles the head there too
Always: learned positions, tied embeddings, pre-LN, tanh GELU, causal SDPA, AdamW (fused) with
fp32 states, gradient-norm clip 1.0, random tokens (fresh batch from pinned host memory every step).
One JSON line per configuration is printed with the prefix RESULT.
"""
import argparse
import contextlib
import gc
import json
import math
import os
import statistics
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

PEAK = 989e12          # dense bf16, H100/H200 SXM datasheet
VOCAB = 50257          # real tokens; the table is padded to args.vocab


# -- model
class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.hd = a.hidden // a.heads
        self.drop = a.drop
        self.qkv = nn.Linear(a.hidden, 3 * a.hidden)   # rows ordered [head][q,k,v][hd]: shards by head
        self.proj = nn.Linear(a.hidden, a.hidden)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, -1, 3, self.hd).unbind(3)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                           dropout_p=self.drop)
        return self.proj(y.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.fc = nn.Linear(a.hidden, 4 * a.hidden)
        self.proj = nn.Linear(4 * a.hidden, a.hidden)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(a.hidden), Attention(a)
        self.ln2, self.mlp = nn.LayerNorm(a.hidden), MLP(a)
        self.drop = nn.Dropout(a.drop) if a.drop else nn.Identity()

    def forward(self, x):
        x = x + self.drop(self.attn(self.ln1(x)))
        return x + self.drop(self.mlp(self.ln2(x)))


class Embed(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(a.vocab, a.hidden), nn.Embedding(a.seq, a.hidden)
        self.register_buffer("pos", torch.arange(a.seq), persistent=False)
        self.drop = nn.Dropout(a.drop) if a.drop else nn.Identity()

    def forward(self, idx):
        return self.drop(self.wte(idx) + self.wpe(self.pos))


class Head(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.ln, self.lm = nn.LayerNorm(a.hidden), nn.Linear(a.hidden, a.vocab, bias=False)

    def forward(self, x, tgt):
        logits = self.lm(self.ln(x))
        return F.cross_entropy(logits.float().flatten(0, 1), tgt.flatten())


class ChunkHead(Head):
    chunks = 4

    def forward(self, x, tgt):
        h = self.ln(x).flatten(0, 1)
        return ChunkedLinearCE.apply(h.to(torch.bfloat16), self.lm.weight, tgt.flatten(), self.chunks)


class GPT2(nn.Module):
    def __init__(self, a, chunk):
        super().__init__()
        self.emb = Embed(a)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.head = (ChunkHead if chunk else Head)(a)
        self.head.lm.weight = self.emb.wte.weight

    def forward(self, idx, tgt):
        x = self.emb(idx)
        for b in self.blocks:
            x = b(x)
        return self.head(x, tgt)

    def init(self, a):
        for n, p in self.named_parameters():
            if p.dim() == 1:
                p.data.fill_(1.0 if ("ln" in n and n.endswith("weight")) else 0.0)
            else:
                std = 0.02 / math.sqrt(2 * a.layers) if n.endswith("proj.weight") else 0.02
                p.data.normal_(0.0, std)


# -- chunked head + loss
@triton.jit
def _ce_kernel(X, T, L, stride, V, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    X += row * stride
    t = tl.load(T + row)
    xt = tl.load(X + t).to(tl.float32)
    m = float("-inf")
    d = 0.0
    for i in range(0, V, BLOCK):
        o = i + tl.arange(0, BLOCK)
        x = tl.load(X + o, mask=o < V, other=-float("inf")).to(tl.float32)
        nm = tl.maximum(m, tl.max(x, 0))
        d = d * tl.exp(m - nm) + tl.sum(tl.exp(x - nm), 0)
        m = nm
    lse = m + tl.log(d)
    tl.store(L + row, lse - xt)
    tl.debug_barrier()
    for i in range(0, V, BLOCK):
        o = i + tl.arange(0, BLOCK)
        x = tl.load(X + o, mask=o < V, other=-float("inf")).to(tl.float32)
        g = tl.exp(x - lse)
        g = tl.where(o == t, g - 1.0, g) * scale
        tl.store(X + o, g.to(tl.bfloat16), mask=o < V)


class ChunkedLinearCE(torch.autograd.Function):
    """Mean cross-entropy of h @ w.T, gradients made in the forward pass chunk by chunk, in place."""

    @staticmethod
    def forward(ctx, h, w, tgt, chunks):
        wb = w.to(torch.bfloat16)
        n = h.shape[0]
        dh = torch.empty_like(h)
        dw = torch.zeros(w.shape, dtype=torch.float32, device=h.device)
        losses = torch.empty(n, dtype=torch.float32, device=h.device)
        c = -(-n // chunks)
        for s in range(0, n, c):
            hc, tc = h[s:s + c], tgt[s:s + c]
            logits = torch.mm(hc, wb.t())
            _ce_kernel[(hc.shape[0],)](logits, tc, losses[s:s + c], logits.stride(0), logits.shape[1], 1.0 / n,
                                       BLOCK=8192, num_warps=16)
            torch.mm(logits, wb, out=dh[s:s + c])
            dw += torch.mm(logits.t(), hc)
        ctx.save_for_backward(dh, dw)
        ctx.wdtype = w.dtype
        return losses.mean()

    @staticmethod
    def backward(ctx, g):
        dh, dw = ctx.saved_tensors
        return dh.mul_(g.to(dh.dtype)), dw.mul_(g).to(ctx.wdtype), None, None


# -- optimizer
def local(t):
    return t.to_local() if hasattr(t, "to_local") else t


class Step:
    """Clip to norm 1 and AdamW on the local shards; fp32 master copies when the parameters are bf16."""

    def __init__(self, model, a, tp, wpe_sum):
        from torch.distributed.tensor import DTensor, Shard
        self.params = list(model.parameters())
        loc = [local(p.detach()) for p in self.params]
        self.low = loc[0].dtype != torch.float32
        self.loc = loc
        self.main = [nn.Parameter(l.float().clone() if self.low else l) for l in loc]
        self.g32 = [torch.empty_like(m) for m in self.main] if self.low else None
        self.tp = tp
        self.wpe_sum = wpe_sum
        sharded = [isinstance(p, DTensor) and any(isinstance(q, Shard) for q in p.placements) for p in self.params]
        self.shard_mask = torch.tensor([float(s) for s in sharded], device="cuda")
        self.opt = torch.optim.AdamW(
            [{"params": [m for m in self.main if m.dim() > 1], "weight_decay": 0.1},
             {"params": [m for m in self.main if m.dim() == 1], "weight_decay": 0.0}],
            lr=a.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)

    @torch.no_grad()
    def __call__(self):
        if self.wpe_sum is not None:
            dist.all_reduce(self.wpe_sum.grad)
        grads = []
        for p in self.params:
            g = p.grad
            if hasattr(g, "full_tensor"):
                if any(pl.is_partial() for pl in g.placements):
                    g = g.redistribute(placements=p.placements)
                g = g.to_local()
            grads.append(g)
        sq = torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32)).square()
        if self.tp:
            s = (sq * self.shard_mask).sum()
            dist.all_reduce(s)
            tot = s + (sq * (1 - self.shard_mask)).sum()
        else:
            tot = sq.sum()
        norm = tot.sqrt()
        coef = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        if self.low:
            torch._foreach_copy_(self.g32, grads)
            grads = self.g32
        torch._foreach_mul_(grads, coef)
        for m, g in zip(self.main, grads):
            m.grad = g
        self.opt.step()
        if self.low:
            torch._foreach_copy_(self.loc, self.main)
        for p in self.params:
            p.grad = None
        if not self.low:
            for m in self.main:
                m.grad = None
        return norm


# -- parallel plans
def apply_tp(model, mesh, sp):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                                   SequenceParallel, parallelize_module)
    r = mesh.get_local_rank()
    n = mesh.size()
    if sp:
        T = model.emb.pos.numel() // n
        model.emb.pos = model.emb.pos[r * T:(r + 1) * T].contiguous()
    parallelize_module(model, mesh, {
        "emb.wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1) if sp else Replicate()),
        "head.lm": ColwiseParallel(input_layouts=Shard(1) if sp else Replicate(), output_layouts=Shard(-1),
                                   use_local_output=False),
        **({"head.ln": SequenceParallel(use_local_output=True)} if sp else {})})
    for b in model.blocks:
        row = dict(output_layouts=Shard(1)) if sp else {}
        plan = {"attn.qkv": ColwiseParallel(), "attn.proj": RowwiseParallel(**row),
                "mlp.fc": ColwiseParallel(), "mlp.proj": RowwiseParallel(**row)}
        if sp:
            plan.update({
                "ln1": SequenceParallel(use_local_output=True), "ln2": SequenceParallel(use_local_output=True),
                "attn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))})
        parallelize_module(b, mesh, plan)
    model.head.lm.weight = model.emb.wte.weight


# -- one run
def run(cfg, a, rank, world):
    w = cfg.split(",")
    pick = lambda *o: next((x for x in o if x in w), o[0])
    comp, prec = pick("eager", "block", "full"), pick("amp", "master")
    attn, loss = pick("cudnn", "flash", "efficient"), pick("plain", "chunk")
    par = pick("ddp", "tp", "tpsp") if world > 1 else "single"
    a.drop = 0.1 if "dropout" in w else 0.0
    unknown = set(w) - {"eager", "block", "full", "amp", "master", "cudnn", "flash", "efficient", "plain", "chunk",
                        "dropout", "ddp", "tp", "tpsp", "single", "headc"}
    assert not unknown, unknown
    tp = par in ("tp", "tpsp")
    assert not (tp and loss == "chunk"), "chunked loss is not written for tensor parallel"
    torch.backends.cuda.enable_cudnn_sdp(attn == "cudnn")
    torch.backends.cuda.enable_flash_sdp(attn == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(attn == "efficient")
    torch.backends.cuda.enable_math_sdp(False)

    torch.manual_seed(1234)
    with torch.device("cuda"):
        model = GPT2(a, loss == "chunk")
    model.init(a)
    nparam = sum(p.numel() for p in model.parameters())
    if prec == "master":
        model.to(torch.bfloat16)
    mesh = None
    if tp:
        mesh = dist.device_mesh.init_device_mesh("cuda", (world,))
        apply_tp(model, mesh, par == "tpsp")
    wpe_sum = model.emb.wpe.weight if par == "tpsp" else None
    if comp == "block":
        for b in model.blocks:
            b.compile()
        if loss == "plain" and (not tp or "headc" in w):
            model.head.compile()
    fwd = model
    if par == "ddp":
        fwd = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()],
                                                  gradient_as_bucket_view=True, broadcast_buffers=False,
                                                  bucket_cap_mb=a.bucket_mb)
    if comp == "full":
        fwd = torch.compile(fwd)
    step = Step(model, a, tp, wpe_sum)

    g = torch.Generator().manual_seed(99 + (0 if tp else rank))
    pool = [torch.randint(0, VOCAB, (a.micro, a.seq + 1), generator=g).pin_memory() for _ in range(8)]
    amp = torch.autocast("cuda", torch.bfloat16) if prec == "amp" else contextlib.nullcontext()
    lp = contextlib.nullcontext
    if tp:
        from torch.distributed.tensor.parallel import loss_parallel as lp

    def one(i):
        d = pool[i % len(pool)].cuda(non_blocking=True)
        x, y = d[:, :-1].contiguous(), d[:, 1:].contiguous()
        with lp():
            with amp:
                l = fwd(x, y)
            l.backward()
        n = step()
        return l.detach(), n

    torch.cuda.reset_peak_memory_stats()
    t0 = time.time()
    outs = [one(i) for i in range(a.warmup)]
    torch.cuda.synchronize()
    t_warm = time.time() - t0
    if world > 1:
        dist.barrier()
    ev = [torch.cuda.Event(enable_timing=True) for _ in range(a.steps + 1)]
    t0 = time.time()
    ev[0].record()
    for i in range(a.steps):
        outs.append(one(a.warmup + i))
        ev[i + 1].record()
    torch.cuda.synchronize()
    wall = (time.time() - t0) / a.steps * 1e3
    ms = [ev[i].elapsed_time(ev[i + 1]) for i in range(a.steps)]
    med, mn = statistics.median(ms), min(ms)
    free, total = torch.cuda.mem_get_info()
    tokens = a.micro * a.seq * (world if par == "ddp" else 1)
    flops = (6 * a.nominal * tokens + 12 * a.layers * a.hidden * a.seq * tokens) / world   # per GPU
    full = [local(o[0]) if not hasattr(o[0], "full_tensor") else o[0].full_tensor() for o in outs]
    res = dict(config=cfg, compile=comp, precision=prec, attention=attn, loss=loss, parallel=par, world=world,
               micro=a.micro, tokens_per_step=tokens, params=nparam, median_ms=round(med, 2), min_ms=round(mn, 2),
               wall_ms=round(wall, 2), tok_s=round(tokens / med * 1e3), mfu=round(flops / (med * 1e-3) / PEAK * 100, 2),
               max_alloc_mib=torch.cuda.max_memory_allocated() >> 20,
               max_reserved_mib=torch.cuda.max_memory_reserved() >> 20, device_used_mib=(total - free) >> 20,
               warm_s=round(t_warm, 1), first_losses=[round(x.item(), 4) for x in full[:3]],
               last_loss=round(full[-1].item(), 4), last_norm=round(outs[-1][1].item(), 4))
    if rank == 0:
        print("RESULT " + json.dumps(res), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("configs", nargs="+")
    p.add_argument("--layers", type=int, default=36)
    p.add_argument("--hidden", type=int, default=1280)
    p.add_argument("--heads", type=int, default=20)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--vocab", type=int, default=50304)
    p.add_argument("--nominal", type=float, default=774e6, help="parameter count used in the MFU formula")
    p.add_argument("--micro", type=int, default=32)
    p.add_argument("--steps", type=int, default=22)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--bucket-mb", type=float, default=64)
    a = p.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if world > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    bad = 0
    for cfg in a.configs:
        t0 = time.time()
        try:
            run(cfg, a, rank, world)
        except Exception as e:
            bad += 1
            print(f"FAILED {cfg} rank {rank}: {type(e).__name__}: {str(e)[:600]}", flush=True)
            tb = traceback.format_exc().splitlines()
            print("\n".join(tb[-14:]), flush=True)
            if world > 1:
                os._exit(1)     # a rank that failed alone would leave the others waiting
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        if rank == 0:
            print(f"({cfg}: {time.time() - t0:.0f} s in all)", flush=True)
    if world > 1:
        dist.destroy_process_group()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
