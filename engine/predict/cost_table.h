// What share of a device's and a link's rates kernels and exchanges reach: measurements, as data. A row holds
// for a family of ops in all recipes; docs/prediction.md says how far the predictions made of them are off.
#pragma once

#include <array>
#include <string_view>

namespace engine::predict {

// A kernel takes launch + max(FLOPs / (arithmetic × matmul_flops), bytes / (memory × memory_bandwidth)).
struct KernelRate {
  std::string_view kernel;
  double arithmetic = 1;
  double memory = 0.85;
};

// CUDA, in 16 bits unless the name says fp8. Measured on an H200 in training steps at the power limit (668
// TFLOP/s sustained, 4.3 TB/s): profile of GPT-2 large, 32 × 1024 tokens (docs/performance.md), times 0.97,
// by which an iteration is shorter replayed than launch by launch. fp8 products: the floor of the FP8 step
// (176.6 ms) less attention and head. Shares above 1: between
// products the card cools. Not measured one by one: norms of RMS, taken for like layer norms; the head in FP8
// and all others, set by the times of FP8 steps. Products of experts in FP8: those of mixtral-s, 1186 to 1285 TFLOP/s by
// themselves; of small experts they are slower (qwen3-moe-s: 1010 to 1060).
// Dropout by itself: 0.117 and 0.121 ms for 41.9M elements, measured when it drew a Philox block of ten rounds for four
// elements. With a norm: not measured, taken for a tenth slower than without.
inline constexpr std::array kCudaRates = {
    KernelRate{"linear", 1.07},
    KernelRate{"linear_dgrad", 1.07},
    KernelRate{"linear_wgrad", 0.99},
    KernelRate{"linear_gelu", 0.98},        // writes the activation's input too
    KernelRate{"linear_dgrad_gelu", 0.97},  // reads it
    KernelRate{"linear_add", 1.07},  // adapters' are bound by memory: 1.07 and 1.14 × as long as predicted
    KernelRate{"linear_dgrad_add", 1.07},
    KernelRate{"linear_cross_entropy", 0.99},
    KernelRate{"linear_fp8", 1.95},
    KernelRate{"linear_dgrad_fp8", 2.07},
    KernelRate{"linear_wgrad_fp8", 2.13},
    KernelRate{"linear_cross_entropy_fp8", 1.60},
    KernelRate{"grouped_linear_fp8", 1.85},
    KernelRate{"grouped_linear_dgrad_fp8", 1.85},
    KernelRate{"grouped_linear_wgrad_fp8", 1.85},
    KernelRate{"add_layer_norm", 1, 0.93},
    KernelRate{"add_dropout_layer_norm", 1, 0.84},
    KernelRate{"add_dropout_rms_norm", 1, 0.84},
    KernelRate{"layer_norm_grad_add", 1, 0.73},
    KernelRate{"add_rms_norm", 1, 0.93},
    KernelRate{"rms_norm_grad_add", 1, 0.73},
    KernelRate{"adamw", 1, 0.95},
    KernelRate{"sgd", 1, 0.95},  // not measured: taken for like adamw, whose loop it has
    KernelRate{"bias_grad", 1, 0.96},
    KernelRate{"cross_entropy", 1, 0.67},
    KernelRate{"cross_entropy_grad", 1, 0.67},
    KernelRate{"embedding_grad", 1, 0.30},  // sorts its rows
    KernelRate{"dropout", 1.10e-3},         // of two FLOPs an element
    KernelRate{"dropout_grad", 1.07e-3},
    KernelRate{"", 1, 0.88},  // all others
};

// The CPU executor in float32. Products are oneDNN's, whose rate is what matmul_flops says; attention and all
// others are set so that tools/bench/gpt-cpu.toml takes the 395 ms that it was measured to take: one figure
// for both.
inline constexpr std::array kCpuRates = {
    KernelRate{"linear"},
    KernelRate{"linear_dgrad"},
    KernelRate{"linear_wgrad"},
    KernelRate{"", 0.10, 0.50},
};

// Attention, causal pairs counted once: share of matmul_flops at sequences without end; at T keys it is
// T / (T + half_keys) of that. Heads between two rows lie between them, smaller ones in proportion.
struct AttentionRate {
  double head;  // elements
  double forward, backward;
};
inline constexpr std::array kCudaAttention = {
    // H200: forward by cuDNN 9.19, B32 H20 S1024 in a step; backward by our own kernels, there and with B8 H32 K8 S4096.
    AttentionRate{64, 0.626, 0.590},
    AttentionRate{128, 0.865, 0.620},  // B4 H32 K8 S4096, times 0.83: in a step over alone
};
// How much longer it takes with dropout, by our own kernels: B32 H20 S1024 E64 0.25 → 0.42 ms (the forward pass without is
// cuDNN's), 0.68 → 1.01 ms; B1 H32 K8 S8192 E128 0.94 → 1.51, 2.9 → 3.6 ms.
struct DropoutFactor {
  double forward, backward;
};
inline constexpr DropoutFactor kDropoutFactor = {1.65, 1.4};
inline constexpr double kCudaHalfKeys = 540;
inline constexpr std::array kCpuAttention = {AttentionRate{64, 0.35, 0.35}};
inline constexpr double kCpuHalfKeys = 0;

// cuDNN 9.19 computes all pairs of queries and keys where there is a window, however short: share of the rate
// above that it reaches in those, llama-1b within windows of 256 and 1024 of 4096 tokens and 1024 of 16,384
// (forward 60 and 218 ms an iteration, backward 188 and 731; without a window 24, 85, 85 and 300).
struct MaskedShare {
  double forward, backward;
};
inline constexpr MaskedShare kMaskedShare = {0.79, 0.65};

// Attention by the reference kernels (backend/cuda/kernels/attention_reference.h), which are bound by the
// instructions that a multiprocessor issues: seconds of an H200 for a pair of a query and a key of a head,
// pair + element for each 32 elements of a head, rounded up to a power of two, + dropout where pairs are
// dropped. Measured in training steps: heads of 16, 32 (bf16), 64 and 128 (fp32), and of 64 with dropout; the
// sum is within 8 % of each.
struct ReferenceRate {
  double pair_s, element_s, dropout_s;
};
inline constexpr double kWarpElements = 32;  // of a head, which a warp takes at once
inline constexpr ReferenceRate kReferenceForward = {0.0507e-9, 0.0255e-9, 0.0944e-9};
inline constexpr ReferenceRate kReferenceBackward = {0.426e-9, 0.0694e-9, 0.2116e-9};

struct DeviceConstants {
  double launch_s;  // of a kernel in a recorded program: gap, and the least that one takes
  // What computation stands still, at least, where it waits for another stream, be that done or not: what
  // tp2, sp2 and cp2 of GPT-2 large wait for exchange (2.6, 6.5, 2.3 ms), over 294, 586 and 288 waits.
  double await_s;
  double float32;  // rate of products in fp32, as a share of matmul_flops
  // Where a cluster file says nothing.
  double matmul_flops;
  double memory_bandwidth, link, network;
};
inline constexpr DeviceConstants kCuda = {.launch_s = 3e-6,
                                          .await_s = 8e-6,
                                          .float32 = 0.08,
                                          .matmul_flops = 668e12,
                                          .memory_bandwidth = 4.3e12,
                                          .link = 360e9,
                                          .network = 50e9};
inline constexpr DeviceConstants kCpu = {.launch_s = 5e-6,
                                         .await_s = 0,
                                         .float32 = 1,
                                         .matmul_flops = 460e9,
                                         .memory_bandwidth = 60e9,
                                         .link = 0,
                                         .network = 1e9};
// Exchange between threads reads and writes what is exchanged, and adds it up.
inline constexpr double kCpuPasses = 4;
inline constexpr double kMultiprocessors = 132;  // of an H200, that tiles of a product share

// A product of m × n × k loses where it has few tiles of 128 × 256 for each multiprocessor (k is split in
// pieces of at least 4096 to get more), and for each tile the time of some steps along k: micro-batches of 8
// × 1024 tokens of GPT-2 large take 4 % more a sample than of 32.
inline constexpr double kTile = 128.0 * 256;
inline constexpr double kSplit = 4096;
inline constexpr double kHalfWave = 0.10;
inline constexpr double kHalfDepth = 64;

// Exchange: start_s + hops × hop + bytes a rank sends / (share × bandwidth of the link).
struct ExchangeRate {
  double start_s;
  double share;
};
// NCCL 2.28.9 on two and four H200 (intra_node_bandwidth 360 GB/s), multicast off, 16 to 256 MiB.
inline constexpr ExchangeRate kAllReduceRate = {28e-6, 0.92};
inline constexpr ExchangeRate kScatterGatherRate = {28e-6, 0.78};
inline constexpr ExchangeRate kAllToAllRate = {40e-6, 0.85};
inline constexpr ExchangeRate kSendRate = {13e-6, 1.0};
// Copy engines, hand-shakes included: 42 MB in 0.123 ms.
inline constexpr ExchangeRate kPushRate = {15e-6, 1.075};
// Read by a kernel, of 42 to 168 MB: 322 to 334 GB/s, by a prototype; meetings as of pushes. Whole runs:
// docs/prediction.md.
inline constexpr ExchangeRate kDirectRate = {15e-6, 0.91};
inline constexpr double kInsideHop = 1e-6;
// Between nodes: rings of 32 H100 with 8 × 400 Gb/s a node reach 331 (all_reduce) and 324 GB/s (all_gather)
// of 400, as published by Voltage Park with AI@GT (NCCL 2.24). A hop is what NCCL's own model of costs takes
// for one.
inline constexpr double kAcrossShare = 0.82;
inline constexpr double kAcrossHop = 9e-6;
// Bytes a second between a GPU and pinned memory of its host, each way: PCIe 5.0 × 16, 55.3 and 55.5 measured on an H100's
// and an H200's machine, beside kernels a little less.
inline constexpr double kHostBandwidth = 53e9;
// Bytes a second of one rank's copy to another host's memory, hashed at both ends (launch/link.h): 0.8 measured over loopback on a virtual
// machine with 2 cores, which compiled meanwhile. Other machines have more.
inline constexpr double kLinkBandwidth = 0.8e9;
// NCCL's kernels beside products: they take this much longer, and cost products this share of their time.
inline constexpr double kBesideSlowdown = 1.6;
inline constexpr double kBesideCost = 0.35;
// Pushes keep their time beside products, but take a share of the memory's bandwidth: of half-batches in
// turns, 8 to 10 ms of 330 where 90 ms are exchanged.
inline constexpr double kPushBesideCost = 0.10;

}  // namespace engine::predict
