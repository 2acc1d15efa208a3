#!/usr/bin/env python3
"""The peer of the cases with experts of tools/bench-gpu: a training step in plain PyTorch, as its users make it fast. Several
configurations per process.

  python3 moe_torch.py CONFIG [CONFIG ...] [--model mixtral-s|qwen3-moe-s|gpt2-moe|tiny --steps 16 --warmup 4 --profile]

CONFIG is a comma list of words; of each row the first is taken when none is given:
  block | full | eager    torch.compile per block and head / whole model / off
  cudnn | flash           the SDPA backend
  grouped | loop          experts by torch._grouped_mm (dropless, sizes on the device) / a product an expert (sizes on the host)
  gather | scatter        permutation and its inverse as gathers in both directions / as PyTorch differentiates indexing (atomics)
  bf16r | fp32r           the router's product of bf16 operands / in float32 (TF32 where PyTorch may)
  plain | chunk           cross entropy on all logits / head and loss in 8 chunks (Triton)
  none | acmoe            activation checkpointing: none / the MoE block's expert part recomputed
  fresh | skew            loads as a fresh router gives them / a fixed bias on the logits that makes them zipf-like
  even | zipf             in their place: tokens go to experts in turn / to expert e about as (e + 1)^-0.7, whatever the router says, as
                          with debug.router of this engine
  micro=N seq=N layers=N  override
bf16 parameters with float32 master copies and float32 AdamW states (fused), clip 1.0, random tokens, aux loss 0.01.
One JSON line per configuration is printed with the prefix RESULT; with --profile the share of time by kind of kernel.
"""
import argparse
import collections
import gc
import json
import re
import statistics
import sys
import time
import traceback

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

torch._dynamo.config.cache_size_limit = 256
PEAK = 989e12
BASE = dict(kv=None, hd=None, glu=True, every=1, qknorm=False, learned=False, tied=False, renorm=True)
MODELS = {
    "mixtral-s": dict(BASE, layers=2, hidden=4096, heads=32, kv=8, ffn=14336, experts=8, topk=2, vocab=32000, seq=4096, micro=8),
    "qwen3-moe-s": dict(BASE, layers=6, hidden=2048, heads=32, kv=4, hd=128, ffn=768, experts=128, topk=8, vocab=32768, seq=4096,
                        micro=8, qknorm=True),
    "gpt2-moe": dict(BASE, layers=36, hidden=1280, heads=20, ffn=5120, experts=8, topk=2, vocab=50304, seq=1024, micro=16, glu=False,
                     every=2, learned=True, tied=True),
    "tiny": dict(BASE, layers=2, hidden=512, heads=8, kv=4, ffn=256, experts=16, topk=4, vocab=4096, seq=512, micro=2)}
SIZES = ("micro", "seq", "vocab")
torch.set_float32_matmul_precision("high")
grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm


class Permute(torch.autograd.Function):
    """rows[i] = x[order[i] // k]; backward is a gather as well: dx[t] = sum of the k rows that token t went to."""

    @staticmethod
    def forward(ctx, x, order, where, k):
        ctx.save_for_backward(where)
        ctx.k = k
        return x[order // k]

    @staticmethod
    def backward(ctx, g):
        (where,) = ctx.saved_tensors
        return g[where].view(-1, ctx.k, g.shape[-1]).sum(1, dtype=torch.float32).to(g.dtype), None, None, None


class Combine(torch.autograd.Function):
    """y[t] = sum of the k rows of token t; backward copies dy[t] to them."""

    @staticmethod
    def forward(ctx, rows, order, where, k):
        ctx.save_for_backward(order)
        ctx.k = k
        return rows[where].view(-1, k, rows.shape[-1]).sum(1, dtype=torch.float32).to(rows.dtype)

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return g[order // ctx.k], None, None, None


class MoE(nn.Module):
    opt = dict(grouped=True, gather=True, fp32r=False, force=False)

    def __init__(self, a):
        super().__init__()
        self.e, self.k, self.glu, self.renorm = a.experts, a.topk, a.glu, a.renorm
        self.router = nn.Linear(a.hidden, a.experts, bias=False)
        self.w1 = nn.Parameter(torch.empty(a.experts, a.ffn * (2 if a.glu else 1), a.hidden))
        self.w2 = nn.Parameter(torch.empty(a.experts, a.hidden, a.ffn))
        self.register_buffer("tilt", torch.zeros(a.experts), persistent=False)

    def force(self, load, tokens):
        """Which experts tokens go to instead of those that the router would choose (engine/ops/route.cpp, attribute force)."""
        if load == "even":
            first = torch.arange(tokens, device="cuda")[:, None] * self.k
            forced = (first + torch.arange(self.k, device="cuda")) % self.e
        else:
            draws = -torch.rand(tokens, self.e, device="cuda").clamp_min(1e-12).log()
            forced = (draws * (1.0 + torch.arange(self.e, device="cuda")) ** 0.7).topk(self.k, dim=-1, largest=False).indices
        self.register_buffer("forced", forced, persistent=False)

    def experts(self, xs, p, ends, counts):
        if self.opt["grouped"]:
            h = grouped_mm(xs, self.w1.transpose(1, 2), offs=ends)
        else:
            n = counts.tolist()
            h = torch.cat([F.linear(z, self.w1[i]) for i, z in enumerate(xs.split(n))])
        if self.glu:
            g, u = h.chunk(2, -1)
            h = (F.silu(g.float()) * u.float() * p).to(xs.dtype)
        else:
            h = (F.gelu(h.float(), approximate="tanh") * p).to(xs.dtype)
        if self.opt["grouped"]:
            return grouped_mm(h, self.w2.transpose(1, 2), offs=ends)
        return torch.cat([F.linear(z, self.w2[i]) for i, z in enumerate(h.split(n))])

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        t, k = x.shape[0], self.k
        if self.opt["fp32r"]:
            logits = x.float() @ self.router.weight.float().t()
        else:
            logits = self.router(x).float()
        logits = logits + self.tilt
        prob = logits.softmax(-1)
        if self.opt["force"]:
            idx = self.forced
            top = prob.gather(-1, idx)
        else:
            top, idx = prob.topk(k, dim=-1)
        if self.renorm:
            top = top / top.sum(-1, keepdim=True)
        flat = idx.flatten()
        order = torch.argsort(flat, stable=True)
        where = torch.empty_like(order).scatter_(0, order, torch.arange(t * k, device=x.device))
        counts = torch.zeros(self.e, dtype=torch.int32, device=x.device).scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        aux = (counts.float() * prob.sum(0)).sum() * (self.e / (k * t * t))
        if self.opt["gather"]:
            xs, p = Permute.apply(x, order, where, k), Permute.apply(top.flatten()[:, None], order, where, 1)
            y = Combine.apply(self.experts(xs, p, ends, counts), order, where, k)
        else:
            xs, p = x[order // k], top.flatten()[order][:, None]
            y = torch.zeros(t, x.shape[1], dtype=torch.float32, device=x.device)
            y = y.index_add(0, order // k, self.experts(xs, p, ends, counts).float()).to(x.dtype)
        return y.view(shape), aux


class MLP(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(a.hidden, a.ffn), nn.Linear(a.ffn, a.hidden)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh")), x.new_zeros((), dtype=torch.float32)


def rope(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    expand = False

    def __init__(self, a):
        super().__init__()
        self.hd, self.kv = a.hd or a.hidden // a.heads, a.kv or a.heads
        self.rep, self.rot = a.heads // self.kv, not a.learned
        self.qkv = nn.Linear(a.hidden, self.kv * (self.rep + 2) * self.hd, bias=a.learned)
        self.proj = nn.Linear(a.heads * self.hd, a.hidden, bias=a.learned)
        if a.qknorm:
            self.qn, self.kn = nn.RMSNorm(self.hd, eps=1e-6), nn.RMSNorm(self.hd, eps=1e-6)
        self.qknorm = a.qknorm
        self.register_buffer("cos", a.cos, persistent=False)
        self.register_buffer("sin", a.sin, persistent=False)

    def forward(self, x):
        B, T, _ = x.shape
        z = self.qkv(x).view(B, T, self.kv, self.rep + 2, self.hd)
        q, k, v = z[..., :self.rep, :].reshape(B, T, -1, self.hd), z[..., self.rep, :], z[..., self.rep + 1, :]
        if self.qknorm:
            q, k = self.qn(q), self.kn(k)
        if self.rot:
            q, k = rope(q, self.cos, self.sin), rope(k, self.cos, self.sin)
        if Attention.expand:
            k, v = (t.repeat_interleave(self.rep, 2) for t in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                           enable_gqa=self.rep > 1 and not Attention.expand)
        return self.proj(y.transpose(1, 2).reshape(B, T, -1))


class Block(nn.Module):
    recompute = False

    def __init__(self, a, moe):
        super().__init__()
        norm = (lambda: nn.LayerNorm(a.hidden)) if a.learned else (lambda: nn.RMSNorm(a.hidden, eps=1e-5))
        self.n1, self.attn, self.n2 = norm(), Attention(a), norm()
        self.mlp = MoE(a) if moe else MLP(a)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        if self.recompute:
            y, aux = torch.utils.checkpoint.checkpoint(self.mlp, self.n2(x), use_reentrant=False)
        else:
            y, aux = self.mlp(self.n2(x))
        return x + y, aux


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
        n, dh = h.shape[0], torch.empty_like(h)
        dw = torch.zeros(w.shape, dtype=torch.float32, device=h.device)
        losses = torch.empty(n, dtype=torch.float32, device=h.device)
        c = -(-n // chunks)
        for s in range(0, n, c):
            hc, tc = h[s:s + c], tgt[s:s + c]
            logits = torch.mm(hc, w.t())
            _ce_kernel[(hc.shape[0],)](logits, tc, losses[s:s + c], logits.stride(0), logits.shape[1], 1.0 / n, BLOCK=8192, num_warps=16)
            torch.mm(logits, w, out=dh[s:s + c])
            dw += torch.mm(logits.t(), hc)
        ctx.save_for_backward(dh, dw)
        ctx.wdtype = w.dtype
        return losses.mean()

    @staticmethod
    def backward(ctx, g):
        dh, dw = ctx.saved_tensors
        return dh.mul_(g.to(dh.dtype)), dw.mul_(g).to(ctx.wdtype), None, None


class Head(nn.Module):
    chunk = False

    def __init__(self, a):
        super().__init__()
        self.norm = nn.LayerNorm(a.hidden) if a.learned else nn.RMSNorm(a.hidden, eps=1e-5)
        self.lm = nn.Linear(a.hidden, a.vocab, bias=False)

    def forward(self, x, tgt):
        if self.chunk:
            return ChunkedLinearCE.apply(self.norm(x).flatten(0, 1), self.lm.weight, tgt.flatten(), 8)
        return F.cross_entropy(self.lm(self.norm(x)).float().flatten(0, 1), tgt.flatten())


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.hidden)
        self.pos = nn.Embedding(a.seq, a.hidden) if a.learned else None
        self.blocks = nn.ModuleList(Block(a, i % a.every == a.every - 1) for i in range(a.layers))
        self.head = Head(a)
        if a.tied:
            self.head.lm.weight = self.emb.weight

    def forward(self, idx, tgt, coeff: float):
        x = self.emb(idx)
        if self.pos is not None:
            x = x + self.pos.weight
        aux = 0.0
        for b in self.blocks:
            x, z = b(x)
            aux = aux + z
        return self.head(x, tgt), coeff * aux


class Step:
    """Clip to norm 1 and AdamW on float32 master copies of bf16 parameters."""

    def __init__(self, model, a):
        self.params = list(model.parameters())
        self.loc = [p.detach() for p in self.params]
        self.main = [nn.Parameter(l.float()) for l in self.loc]
        self.g32 = [torch.empty_like(m) for m in self.main]
        self.opt = torch.optim.AdamW([{"params": [m for m in self.main if m.dim() > 1], "weight_decay": 0.1},
                                      {"params": [m for m in self.main if m.dim() == 1], "weight_decay": 0.0}],
                                     lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)

    @torch.no_grad()
    def __call__(self):
        grads = [p.grad for p in self.params]
        norm = torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float32)).square().sum().sqrt()
        torch._foreach_copy_(self.g32, grads)
        torch._foreach_mul_(self.g32, (1.0 / (norm + 1e-6)).clamp(max=1.0))
        for m, g in zip(self.main, self.g32):
            m.grad = g
        self.opt.step()
        torch._foreach_copy_(self.loc, self.main)
        for p in self.params:
            p.grad = None
        return norm


KINDS = [("attention", r"flash|fmha|sdpa|attention"), ("expert products", r"_grouped_mm|GroupProblem|grouped|Grouped"),
         ("dense products", r"nvjet|gemm|cutlass|splitK|cublas"), ("sort, top-k, counts", r"sort|Sort|topk|TopK|radix|gatherTopK|scan|Scan|bitonic"),
         ("permute, combine", r"triton.*(index|gather)|index_(elementwise|put|add|select)|gather|scatter|indexFunc|indexing_backward"),
         ("optimizer", r"multi_tensor|FusedAdam|foreach"), ("copies, fills", r"Memcpy|Memset|fill|copy|CatArray"), ("other triton", r"triton")]


def profile(one, tag):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        for i in range(3):
            one(i)
        torch.cuda.synchronize()
    by, names = collections.Counter(), collections.Counter()
    for e in prof.key_averages():
        t = (getattr(e, "self_device_time_total", 0) or 0) / 3e3
        if t <= 0:
            continue
        names[e.key] += t
        by[next((k for k, p in KINDS if re.search(p, e.key)), "other")] += t
    total = sum(by.values())
    print(f"PROFILE {tag} total {total:.1f} ms: " + "; ".join(f"{k} {v:.2f} ({100 * v / total:.1f}%)" for k, v in by.most_common()), flush=True)
    for n, t in names.most_common(28):
        print(f"   {t:8.3f} ms  {n[:150]}")


def run(cfg, opt):
    words = [x for x in cfg.split(",") if "=" not in x]
    over = {x.split("=")[0]: int(x.split("=")[1]) for x in cfg.split(",") if "=" in x}
    sizes = {name: getattr(opt, name) for name in SIZES if getattr(opt, name)}
    a = argparse.Namespace(**{**MODELS[opt.model], **sizes, **over})
    rows = [("block", "full", "eager"), ("cudnn", "flash"), ("grouped", "loop"), ("gather", "scatter"), ("bf16r", "fp32r"),
            ("plain", "chunk"), ("none", "acmoe"), ("fresh", "skew", "even", "zipf")]
    comp, attn, ex, perm, rt, loss, ac, load = (next((x for x in r if x in words), r[0]) for r in rows)
    unknown = set(words) - {x for r in rows for x in r}
    assert not unknown, unknown
    hd = a.hd or a.hidden // a.heads
    ang = torch.arange(a.seq, device="cuda").float()[:, None] * (1e4 ** -(torch.arange(0, hd, 2, device="cuda").float() / hd))[None]
    a.cos, a.sin = ang.cos()[:, None, :], ang.sin()[:, None, :]
    from torch.nn.attention import SDPBackend, sdpa_kernel
    back = [SDPBackend.CUDNN_ATTENTION] if attn == "cudnn" else [SDPBackend.FLASH_ATTENTION]
    MoE.opt = dict(grouped=ex == "grouped", gather=perm == "gather", fp32r=rt == "fp32r", force=load in ("even", "zipf"))
    Block.recompute, Head.chunk = ac == "acmoe", loss == "chunk"
    torch.manual_seed(7)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Model(a)
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.02)
        for m in model.modules():
            if isinstance(m, MoE):
                m.tilt = (-0.7 * torch.log(1.0 + torch.arange(m.e, device="cuda"))) * (1.0 if load == "skew" else 0.0)
                if MoE.opt["force"]:
                    m.force(load, a.micro * a.seq)
    nparam = sum(p.numel() for p in model.parameters())
    moes = [b.mlp for b in model.blocks if isinstance(b.mlp, MoE)]
    active = nparam - sum(m.w1.numel() + m.w2.numel() for m in moes) * (1 - a.topk / a.experts) - (0 if a.tied else a.vocab * a.hidden)
    if a.learned:
        active -= a.seq * a.hidden
    step = Step(model, a)
    fwd = model
    if comp == "block":
        for b in model.blocks:
            b.compile()
        if loss == "plain":
            model.head.compile()
    elif comp == "full":
        fwd = torch.compile(model)
    pool = [torch.randint(0, a.vocab, (a.micro, a.seq + 1)).pin_memory() for _ in range(4)]
    marks = []

    def one(i):
        d = pool[i % 4].cuda(non_blocking=True)
        e = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        e[0].record()
        with sdpa_kernel(back):
            l, aux = fwd(d[:, :-1].contiguous(), d[:, 1:].contiguous(), 0.01)
            (l + aux).backward()
        e[1].record()
        n = step()
        e[2].record()
        marks.append(e)
        return l.detach(), aux.detach(), n

    torch.cuda.reset_peak_memory_stats()
    t0 = time.time()
    outs = [one(i) for i in range(opt.warmup)]
    torch.cuda.synchronize()
    warm = time.time() - t0
    marks.clear()
    started = time.time()
    outs += [one(i) for i in range(opt.steps)]
    torch.cuda.synchronize()
    wall = 1e3 * (time.time() - started) / opt.steps
    steps = [marks[i][0].elapsed_time(marks[i + 1][0]) for i in range(len(marks) - 1)]
    ms = statistics.median(steps)
    fb = statistics.median(m[0].elapsed_time(m[1]) for m in marks)
    up = statistics.median(m[1].elapsed_time(m[2]) for m in marks)
    free, total = torch.cuda.mem_get_info()
    tok = a.micro * a.seq
    flops = 6 * active * tok + 6 * a.layers * a.heads * hd * a.seq * tok       # causal attention counted at half
    print("RESULT " + json.dumps(dict(
        model=opt.model, config=cfg, params=nparam, active=int(active), tokens_per_step=tok, layers=a.layers, seq=a.seq, micro=a.micro, vocab=a.vocab,
        median_ms=round(ms, 2), min_ms=round(min(steps), 2), wall_ms=round(wall, 2), forward_backward_ms=round(fb, 2), update_ms=round(up, 2), tok_s=round(tok / ms * 1e3),
        tflops=round(flops / ms / 1e9, 1), max_alloc_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1),
        used_gib=round((total - free) / 2**30, 1), warm_s=round(warm, 1), first_losses=[round(o[0].item(), 4) for o in outs[:3]],
        last_loss=round(outs[-1][0].item(), 4), aux=round(outs[-1][1].item(), 5), norm=round(outs[-1][2].item(), 3))), flush=True)
    if opt.profile:
        profile(one, f"{opt.model} {cfg}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("configs", nargs="+")
    p.add_argument("--model", default="mixtral-s")
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--warmup", type=int, default=4)
    p.add_argument("--profile", action="store_true")
    for name in SIZES:
        p.add_argument(f"--{name}", type=int, help="in place of the model's")
    opt = p.parse_args()
    bad = 0
    for cfg in opt.configs:
        t0 = time.time()
        try:
            run(cfg, opt)
        except Exception as e:
            bad += 1
            print(f"FAILED {opt.model} {cfg}: {type(e).__name__}: {str(e)[:500]}", flush=True)
            print("\n".join(traceback.format_exc().splitlines()[-10:]), flush=True)
        torch.set_default_dtype(torch.float32)
        gc.collect()
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        print(f"({cfg}: {time.time() - t0:.0f} s in all)", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
