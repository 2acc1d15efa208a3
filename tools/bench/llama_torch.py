#!/usr/bin/env python3
"""The peer of the Llama cases of tools/bench-gpu: a training step in plain PyTorch, as its users make it fast. Several
configurations per process.

  python3 llama_torch.py CONFIG [CONFIG ...] [--model 1b --seq 4096 --micro 8 --steps 22 --warmup 4]
  torchrun --standalone --nproc_per_node=4 llama_torch.py fsdp,block --model 8b --seq 4096 --micro 2

CONFIG is a comma list of words; of each row the first is taken when none is given:
  block | full | eager        torch.compile per block and head / whole model / off
  master | fp32               bf16 parameters with fp32 master copies / fp32 parameters (FSDP2 mixed precision)
  cudnn | flash               the SDPA backend
  plain | chunk               F.cross_entropy on all logits / chunked head + loss (Triton, one GPU only)
  none | acfull | acsel       activation checkpointing: none / every block / selective per op (torchtitan's policy)
  bf16 | f8                   block products in bf16 / FP8 tensorwise dynamic scaling (torchao's recipe)
  ddp | fsdp | zero2 | tp | tpsp    under torchrun; zero2: FSDP2 that keeps parameters after forward; rs16: bf16
                              reduce-scatter
  micro=N seq=N               override the options for this configuration
AdamW (fused), fp32 states, clip 1.0, random tokens (fresh batch from pinned memory each step).
One JSON line per configuration is printed with the prefix RESULT.
"""
import argparse
import contextlib
import gc
import json
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

torch._dynamo.config.cache_size_limit = 128
PEAK = 989e12          # dense bf16, H100/H200 SXM datasheet
MODELS = {"1b": dict(layers=16, hidden=2048, heads=32, kv=8, ffn=8192, tied=True),
          "8b": dict(layers=32, hidden=4096, heads=32, kv=8, ffn=14336, tied=False),
          "tiny": dict(layers=2, hidden=512, heads=8, kv=4, ffn=1024, tied=False)}
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


# -- fp8 linear
def cast8(x, dt):
    m = 448.0 if dt is E4 else 57344.0
    s = m / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * s).clamp(-m, m).to(dt), 1.0 / s


class F8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        x8, sx = cast8(x, E4)
        w8, sw = cast8(w, E4)
        ctx.save_for_backward(x, w)
        return torch._scaled_mm(x8, w8.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16, use_fast_accum=True)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g8, sg = cast8(g, E5)
        w8, sw = cast8(w, E4)
        x8, sx = cast8(x, E4)
        dx = torch._scaled_mm(g8, w8.t().contiguous().t(), scale_a=sg, scale_b=sw, out_dtype=torch.bfloat16)
        dw = torch._scaled_mm(g8.t().contiguous(), x8.t().contiguous().t(), scale_a=sg, scale_b=sx, out_dtype=torch.bfloat16)
        return dx, dw


class Linear(nn.Linear):
    f8 = False

    def forward(self, x):
        if not Linear.f8:
            return F.linear(x, self.weight)
        return F8.apply(x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


# -- model
def rope(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    expand = False                                   # set when the backend refuses grouped heads

    def __init__(self, a):
        super().__init__()
        self.hd, self.rep = a.hidden // a.heads, a.heads // a.kv
        self.qkv = Linear(a.hidden, a.kv * (self.rep + 2) * self.hd, bias=False)   # rows [kv head][q..., k, v][hd]
        self.proj = Linear(a.hidden, a.hidden, bias=False)
        self.register_buffer("cos", a.cos, persistent=False)
        self.register_buffer("sin", a.sin, persistent=False)

    def forward(self, x):
        B, T, _ = x.shape
        z = self.qkv(x).view(B, T, -1, self.rep + 2, self.hd)
        q = rope(z[..., :self.rep, :].reshape(B, T, -1, self.hd), self.cos, self.sin)
        k = rope(z[..., self.rep, :], self.cos, self.sin)
        v = z[..., self.rep + 1, :]
        if Attention.expand:
            k, v = (t.repeat_interleave(self.rep, 2) for t in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                           enable_gqa=not Attention.expand)
        return self.proj(y.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.part = a.ffn // 8                       # rows [8][gate, up][ffn / 8]: shards by tensor parallel rank
        self.w13 = Linear(a.hidden, 2 * a.ffn, bias=False)
        self.w2 = Linear(a.ffn, a.hidden, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        g, u = self.w13(x).view(B, T, -1, 2, self.part).unbind(3)
        return self.w2((F.silu(g) * u).reshape(B, T, -1))


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.n1, self.attn = nn.RMSNorm(a.hidden, eps=1e-5), Attention(a)
        self.n2, self.mlp = nn.RMSNorm(a.hidden, eps=1e-5), MLP(a)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Head(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.norm, self.lm = nn.RMSNorm(a.hidden, eps=1e-5), nn.Linear(a.hidden, a.vocab, bias=False)

    def forward(self, x, tgt):
        return F.cross_entropy(self.lm(self.norm(x)).float().flatten(0, 1), tgt.flatten())


class ChunkHead(Head):
    chunks = 8

    def forward(self, x, tgt):
        return ChunkedLinearCE.apply(self.norm(x).flatten(0, 1), self.lm.weight, tgt.flatten(), self.chunks)


class Llama(nn.Module):
    def __init__(self, a, chunk):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.hidden)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.head = (ChunkHead if chunk else Head)(a)
        if a.tied:
            self.head.lm.weight = self.emb.weight

    def forward(self, idx, tgt):
        x = self.emb(idx)
        for b in self.blocks:
            x = b(x)
        return self.head(x, tgt)


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

    def __init__(self, model, a, reduce_norm):
        from torch.distributed.tensor import DTensor, Shard
        self.params = list(model.parameters())
        loc = [local(p.detach()) for p in self.params]
        self.low = loc[0].dtype != torch.float32
        self.loc = loc
        self.main = [nn.Parameter(l.float().clone() if self.low else l) for l in loc]
        self.g32 = [torch.empty_like(m) for m in self.main] if self.low else None
        self.reduce = reduce_norm
        sharded = [isinstance(p, DTensor) and any(isinstance(q, Shard) for q in p.placements) for p in self.params]
        self.shard_mask = torch.tensor([float(s) for s in sharded], device="cuda")
        self.opt = torch.optim.AdamW(
            [{"params": [m for m in self.main if m.dim() > 1], "weight_decay": 0.1},
             {"params": [m for m in self.main if m.dim() == 1], "weight_decay": 0.0}],
            lr=a.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)

    @torch.no_grad()
    def __call__(self):
        grads = []
        for p in self.params:
            g = p.grad
            if hasattr(g, "full_tensor"):
                if tuple(g.placements) != tuple(p.placements):
                    g = g.redistribute(placements=p.placements)
                g = g.to_local()
            grads.append(g)
        sq = torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32)).square()
        if self.reduce:
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
    parallelize_module(model, mesh, {
        "emb": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1) if sp else Replicate()),
        "head.lm": ColwiseParallel(input_layouts=Shard(1) if sp else Replicate(), output_layouts=Shard(-1),
                                   use_local_output=False),
        **({"head.norm": SequenceParallel(use_local_output=True)} if sp else {})})
    for b in model.blocks:
        row = dict(output_layouts=Shard(1)) if sp else {}
        plan = {"attn.qkv": ColwiseParallel(), "attn.proj": RowwiseParallel(**row),
                "mlp.w13": ColwiseParallel(), "mlp.w2": RowwiseParallel(**row)}
        if sp:
            plan.update({
                "n1": SequenceParallel(use_local_output=True), "n2": SequenceParallel(use_local_output=True),
                "attn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))})
        parallelize_module(b, mesh, plan)


def wrap_ac(b, kind):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    if kind == "acfull":
        return checkpoint_wrapper(b, preserve_rng_state=False)
    from collections import defaultdict
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    aten = torch.ops.aten
    save = {aten.mm.default, aten._scaled_mm.default, aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_cudnn_attention.default,
            torch.ops._c10d_functional.reduce_scatter_tensor.default}

    def ctx():
        n = defaultdict(int)

        def policy(c, func, *args, **kw):
            k = ("r" if c.is_recompute else "f")
            if func is aten.mm.default:
                n[k] += 1
            return (CheckpointPolicy.MUST_SAVE if func in save and not (func is aten.mm.default and n[k] % 2 == 0)
                    else CheckpointPolicy.PREFER_RECOMPUTE)
        return create_selective_checkpoint_contexts(policy)
    return checkpoint_wrapper(b, context_fn=ctx, preserve_rng_state=False)


# -- one run
def run(cfg, a, rank, world):
    w = [x for x in cfg.split(",") if "=" not in x]
    over = {x.split("=")[0]: int(x.split("=")[1]) for x in cfg.split(",") if "=" in x}
    a = argparse.Namespace(**{**vars(a), **MODELS[a.model], **over})
    pick = lambda *o: next((x for x in o if x in w), o[0])
    comp, attn, loss = pick("block", "full", "eager"), pick("cudnn", "flash"), pick("plain", "chunk")
    ac, f8 = pick("none", "acfull", "acsel"), "f8" in w
    par = pick("ddp", "fsdp", "zero2", "tp", "tpsp") if world > 1 else "single"
    prec = "fp32" if par in ("fsdp", "zero2") else pick("master", "fp32")
    unknown = set(w) - {"block", "full", "eager", "cudnn", "flash", "plain", "chunk", "none", "acfull", "acsel", "f8", "bf16",
                        "ddp", "fsdp", "zero2", "tp", "tpsp", "single", "master", "fp32", "rs16"}
    assert not unknown, unknown
    tp = par in ("tp", "tpsp")
    assert not (loss == "chunk" and world > 1)
    Linear.f8 = f8
    torch.backends.cuda.enable_cudnn_sdp(attn == "cudnn")
    torch.backends.cuda.enable_flash_sdp(attn == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)

    hd = a.hidden // a.heads
    Attention.expand = False
    try:
        q, k = (torch.randn(1, h, 256, hd, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                for h in (a.heads, a.kv))
        F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).sum().backward()
    except RuntimeError as e:
        Attention.expand = True
        print(f"note: {attn} refuses grouped heads, expanding: {str(e)[:120]}", flush=True)
    ang = torch.outer(torch.arange(a.seq, device="cuda").float(),
                      500000.0 ** (-torch.arange(0, hd, 2, device="cuda").float() / hd))
    a.cos, a.sin = ang.cos()[:, None, :], ang.sin()[:, None, :]
    torch.manual_seed(1234)
    with torch.device("meta"):
        model = Llama(a, loss == "chunk")
    wanted = torch.bfloat16 if prec == "master" else torch.float32
    mods = [(m, n) for m in model.modules() for n, p in m.named_parameters(recurse=False)]
    done = {}
    for m, n in mods:
        p = getattr(m, n)
        if p not in done:
            t = torch.empty(p.shape, device="cuda", dtype=wanted)
            t.fill_(1.0) if p.dim() == 1 else t.normal_(0.0, 0.02)
            done[p] = nn.Parameter(t)
        setattr(m, n, done[p])
    for m in model.modules():
        if isinstance(m, Attention):
            m.cos, m.sin = a.cos, a.sin
    del done
    nparam = sum(p.numel() for p in model.parameters())
    nominal = nparam - (0 if a.tied else a.vocab * a.hidden)
    if tp:
        mesh = dist.device_mesh.init_device_mesh("cuda", (world,))
        apply_tp(model, mesh, par == "tpsp")
    if ac != "none":
        for i in range(a.layers):
            model.blocks[i] = wrap_ac(model.blocks[i], ac)
    if comp == "block":
        for i in range(a.layers):
            if par in ("fsdp", "zero2"):
                model.blocks[i] = torch.compile(model.blocks[i])
            else:
                model.blocks[i].compile()
        if loss == "plain":
            if par in ("fsdp", "zero2"):
                model.head = torch.compile(model.head)
            else:
                model.head.compile()
    fwd = model
    if par in ("fsdp", "zero2"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = dist.device_mesh.init_device_mesh("cuda", (world,))
        kw = dict(mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                            reduce_dtype=torch.bfloat16 if "rs16" in w else torch.float32))
        for b in model.blocks:
            fully_shard(b, reshard_after_forward=par == "fsdp", **kw)
        if not a.tied:
            fully_shard(model.emb, reshard_after_forward=par == "fsdp", **kw)
            fully_shard(model.head, reshard_after_forward=False, **kw)
        fully_shard(model, reshard_after_forward=False, **kw)
    if par == "ddp":
        fwd = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()],
                                                  gradient_as_bucket_view=True, broadcast_buffers=False, bucket_cap_mb=64)
    if comp == "full":
        fwd = torch.compile(fwd)
    gc.collect()
    torch.cuda.empty_cache()
    step = Step(model, a, tp or par in ("fsdp", "zero2"))

    g = torch.Generator().manual_seed(99 + (0 if tp else rank))
    pool = [torch.randint(0, a.vocab, (a.micro, a.seq + 1), generator=g).pin_memory() for _ in range(8)]
    lp = contextlib.nullcontext
    if tp:
        from torch.distributed.tensor.parallel import loss_parallel as lp

    def one(i):
        d = pool[i % len(pool)].cuda(non_blocking=True)
        x, y = d[:, :-1].contiguous(), d[:, 1:].contiguous()
        with lp():
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
    tokens = a.micro * a.seq * (world if par in ("ddp", "fsdp", "zero2") else 1)
    flops = (6 * nominal * tokens + 12 * a.layers * a.hidden * a.seq * tokens) / world   # per GPU
    full = [o[0] if not hasattr(o[0], "full_tensor") else o[0].full_tensor() for o in outs]
    res = dict(config=cfg, gqa_expanded=Attention.expand, model=a.model, compile=comp, precision=prec, attention=attn,
               loss=loss, parallel=par, ac=ac, f8=f8,
               world=world, micro=a.micro, seq=a.seq, tokens_per_step=tokens, params=nparam, median_ms=round(med, 2),
               min_ms=round(mn, 2), wall_ms=round(wall, 2), tok_s=round(tokens / med * 1e3),
               tok_s_gpu=round(tokens / med * 1e3 / world), tflops_gpu=round(flops / med / 1e9, 1),
               mfu=round(flops / (med * 1e-3) / PEAK * 100, 2),
               max_alloc_mib=torch.cuda.max_memory_allocated() >> 20,
               max_reserved_mib=torch.cuda.max_memory_reserved() >> 20, device_used_mib=(total - free) >> 20,
               warm_s=round(t_warm, 1), first_losses=[round(x.item(), 4) for x in full[:3]],
               last_loss=round(full[-1].item(), 4), last_norm=round(outs[-1][1].item(), 4))
    if rank == 0:
        print("RESULT " + json.dumps(res), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("configs", nargs="+")
    p.add_argument("--model", default="1b")
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--vocab", type=int, default=128256)
    p.add_argument("--micro", type=int, default=8)
    p.add_argument("--steps", type=int, default=21)
    p.add_argument("--warmup", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-4)
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
        gc.collect()
        torch.cuda.empty_cache()
        if rank == 0:
            print(f"({cfg}: {time.time() - t0:.0f} s in all)", flush=True)
    if world > 1:
        dist.destroy_process_group()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
