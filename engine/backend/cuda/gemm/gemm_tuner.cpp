#include "engine/backend/cuda/gemm/gemm_tuner.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/backend/cuda/gemm/trial.h"
#include "engine/backend/cuda/kernels/ordered_product.h"
#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {
namespace {

// ----------------------------------------------------------------------------------------------- the choice

std::string ToHex(const cublasLtMatmulAlgo_t& algorithm) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&algorithm);
  std::string hex;
  for (std::size_t i = 0; i < sizeof(algorithm); ++i) hex += fmt::format("{:02x}", bytes[i]);
  return hex;
}

std::optional<cublasLtMatmulAlgo_t> FromHex(std::string_view hex) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  cublasLtMatmulAlgo_t algorithm{};
  if (hex.size() != 2 * sizeof(algorithm)) return std::nullopt;
  auto* bytes = reinterpret_cast<unsigned char*>(&algorithm);
  for (std::size_t i = 0; i < sizeof(algorithm); ++i) {
    const std::size_t high = kDigits.find(hex[2 * i]);
    const std::size_t low = kDigits.find(hex[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes[i] = static_cast<unsigned char>(16 * high + low);
  }
  return algorithm;
}

// The choice of a product in order that none of cuBLASLt's algorithms carries out.
constexpr std::string_view kOwnInOrder = "own";

DType DTypeOf(cudaDataType type) {
  return type == CUDA_R_16F ? DType::kF16 : type == CUDA_R_32F ? DType::kF32 : DType::kBF16;
}

FewRows OrderedProductOf(const GemmSpec& spec, const GemmOperands& operands, void* y) {
  return {.dtype = DTypeOf(spec.a),
          .made = DTypeOf(spec.d),
          .rows = spec.m,
          .columns = spec.n,
          .terms = spec.k,
          .x = operands.a,
          .w = operands.b,
          .bias = spec.has_bias() ? operands.bias : nullptr,
          .y = y};
}

// ---------------------------------------------------------------------------------------------- the operands

// Memory of one product while its algorithms are timed.
class TuningOperands {
 public:
  TuningOperands(void* lent, std::int64_t lent_bytes) : lent_(lent), lent_bytes_(lent_bytes) {}
  ~TuningOperands() {
    if (base_ != lent_) cudaFree(base_);
  }
  TuningOperands(const TuningOperands&) = delete;
  TuningOperands& operator=(const TuningOperands&) = delete;

  // ResourceExhausted where the device is too full.
  absl::Status Allocate(cudaStream_t stream, const GemmSpec& spec) {
    std::int64_t bytes = 0;
    const auto place = [&](std::int64_t size) {
      const std::int64_t at = bytes;
      bytes += (size + 255) / 256 * 256;
      return at;
    };
    const std::int64_t a_bytes = spec.m * spec.k * SizeOf(spec.a);
    const std::int64_t b_bytes = spec.k * spec.n * SizeOf(spec.b);
    const std::int64_t aux_bytes = spec.has_aux() ? spec.m * spec.n * SizeOf(spec.aux_type()) : 0;
    const std::int64_t d_bytes = spec.m * spec.n * SizeOf(spec.d);
    const std::int64_t a = place(a_bytes);
    const std::int64_t b = place(b_bytes);
    const std::int64_t aux = place(aux_bytes);
    const std::int64_t d = place(d_bytes);
    const std::int64_t expected = place(spec.in_order ? d_bytes + kCountBytes : 0);
    const std::int64_t bias = place(spec.n * 4);
    const std::int64_t scale = place(16);
    const std::int64_t workspace = place(kGemmWorkspaceBytes);
    if (bytes <= lent_bytes_) {
      base_ = lent_;
    } else if (const cudaError_t error = cudaMalloc(&base_, static_cast<std::size_t>(bytes));
               error != cudaSuccess) {
      base_ = nullptr;
      cudaGetLastError();  // so that no later launch is blamed
      return ToStatus(error, "cudaMalloc");
    }
    char* base = static_cast<char*>(base_);
    const float one = 1.0F;
    RETURN_IF_CUDA_ERROR(cudaMemsetAsync(base + d, 0, static_cast<std::size_t>(scale - d), stream));
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(base + scale, &one, sizeof(one), cudaMemcpyHostToDevice, stream));
    RETURN_IF_ERROR(FillRandom(stream, base + a, a_bytes, spec.a));
    RETURN_IF_ERROR(FillRandom(stream, base + b, b_bytes, spec.b));
    if (aux_bytes > 0) RETURN_IF_ERROR(FillRandom(stream, base + aux, aux_bytes, spec.aux_type()));
    if (spec.in_order) RETURN_IF_ERROR(FillRandom(stream, base + bias, spec.n * SizeOf(spec.d), spec.d));
    expected_ = {base + expected, d_bytes};
    const auto* scales = reinterpret_cast<const float*>(base + scale);
    operands_ = {base + a, base + b, base + d, base + bias,     base + aux,
                 scales,   scales,   scales,   base + workspace};
    return absl::OkStatus();
  }
  const GemmOperands& operands() const { return operands_; }

  // For a product in order: the first makes what D should be, the second says whether D is that, bit for bit.
  absl::Status MakeExpected(cudaStream_t stream, const GemmSpec& spec) {
    LaunchOrderedProduct(OrderedProductOf(spec, operands_, expected_.data), stream);
    return ToStatus(cudaGetLastError(), "a product in order");
  }
  absl::StatusOr<bool> IsAsExpected(cudaStream_t stream) {
    auto* const count = reinterpret_cast<std::uint32_t*>(expected_.data + expected_.bytes);
    RETURN_IF_CUDA_ERROR(cudaMemsetAsync(count, 0, sizeof(*count), stream));
    CountUnequal(operands_.d, expected_.data, expected_.bytes, count, stream);
    std::uint32_t unequal = 0;
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(&unequal, count, sizeof(unequal), cudaMemcpyDeviceToHost, stream));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
    return unequal == 0;
  }

 private:
  static constexpr std::int64_t kCountBytes = 16;
  struct Bytes {
    char* data = nullptr;
    std::int64_t bytes = 0;
  };

  void* lent_ = nullptr;
  std::int64_t lent_bytes_ = 0;
  void* base_ = nullptr;
  GemmOperands operands_;
  Bytes expected_;  // [m, n] of D's type, and the number of unequal words behind it
};

// ------------------------------------------------------------------------------------------------ the timing

// Enqueues the product, with the algorithm that it has then.
using Run = std::function<absl::Status()>;

struct Timed {
  cublasLtMatmulAlgo_t algorithm;
  float milliseconds;
};

// Fastest first. An algorithm that fails when it is run is left out.
absl::StatusOr<std::vector<Timed>> TimeEach(Gemm* gemm, const Run& run, Stopwatch* stopwatch,
                                            const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  std::vector<Timed> timed;
  for (const cublasLtMatmulAlgo_t& candidate : candidates) {
    gemm->set_algorithm(candidate);
    if (!stopwatch->Time(run, 1).ok()) {  // loads the kernel
      // What a refused launch leaves behind; anything worse stays and is met by the next call.
      cudaGetLastError();
      continue;
    }
    ASSIGN_OR_RETURN(const float once, stopwatch->Time(run, 1));
    ASSIGN_OR_RETURN(const float milliseconds, stopwatch->Time(run, Repetitions(once, 4.0F, 20)));
    timed.push_back({candidate, milliseconds});
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const Timed& x, const Timed& y) { return x.milliseconds < y.milliseconds; });
  return timed;
}

// The leaders once more, in turns: the clock falls while the card heats up, which must not favour who came
// first.
absl::Status TimeAgain(Gemm* gemm, const Run& run, Stopwatch* stopwatch, std::vector<Timed>* leaders) {
  constexpr int kRounds = 3;
  std::vector<std::vector<float>> times(leaders->size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < leaders->size(); ++i) {
      Timed& leader = (*leaders)[i];
      gemm->set_algorithm(leader.algorithm);
      ASSIGN_OR_RETURN(const float milliseconds,
                       stopwatch->Time(run, Repetitions(leader.milliseconds, 40.0F, 400)));
      times[i].push_back(milliseconds);
    }
  }
  for (std::size_t i = 0; i < leaders->size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    (*leaders)[i].milliseconds = times[i][kRounds / 2];
  }
  return absl::OkStatus();
}

// The candidates whose sums are in order. An algorithm that fails when it is run is left out.
absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> InOrder(
    Gemm* gemm, cudaStream_t stream, TuningOperands* memory,
    const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  std::vector<cublasLtMatmulAlgo_t> in_order;
  RETURN_IF_ERROR(memory->MakeExpected(stream, gemm->spec()));
  for (const cublasLtMatmulAlgo_t& candidate : candidates) {
    gemm->set_algorithm(candidate);
    if (!gemm->Run(stream, memory->operands()).ok()) {
      cudaGetLastError();  // what a refused launch leaves behind
      continue;
    }
    ASSIGN_OR_RETURN(const bool is_in_order, memory->IsAsExpected(stream));
    if (is_in_order) in_order.push_back(candidate);
  }
  return in_order;
}

absl::StatusOr<cublasLtMatmulAlgo_t> Fastest(Gemm* gemm, cudaStream_t stream, const GemmOperands& operands,
                                             const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  constexpr std::size_t kLeaders = 3;
  const Run run = [&] { return gemm->Run(stream, operands); };
  Stopwatch stopwatch(stream);
  RETURN_IF_ERROR(stopwatch.Open());
  ASSIGN_OR_RETURN(std::vector<Timed> timed, TimeEach(gemm, run, &stopwatch, candidates));
  if (timed.empty()) {
    return Unimplemented("product {}: none of cuBLASLt's {} algorithms runs", gemm->spec().ToString(),
                         candidates.size());
  }
  timed.resize(std::min(timed.size(), kLeaders));
  RETURN_IF_ERROR(TimeAgain(gemm, run, &stopwatch, &timed));
  return std::min_element(timed.begin(), timed.end(),
                          [](const Timed& x, const Timed& y) { return x.milliseconds < y.milliseconds; })
      ->algorithm;
}

}  // namespace

std::int64_t CountKeptProducts(const std::string& file) {
  return CountChoices(
      file, [](const std::string&, const std::string& choice) { return FromHex(choice).has_value(); });
}

GemmTuner::GemmTuner(cublasLtHandle_t handle, cudaStream_t stream, GemmTunerOptions options)
    : handle_(handle), stream_(stream), options_(std::move(options)) {}

std::string GemmTuner::KeyOf(const GemmSpec& spec) const {
  return fmt::format("{}\t{}\t{}{}", options_.device_name, cublasLtGetVersion(), spec.ToString(),
                     options_.deterministic ? ", repeatable" : "");
}

absl::StatusOr<GemmTuner::Choice> GemmTuner::Choose(Gemm* gemm) {
  ASSIGN_OR_RETURN(std::vector<cublasLtMatmulAlgo_t> candidates, gemm->Candidates(options_.deterministic));
  const bool in_order = gemm->spec().in_order;
  if (candidates.empty() && !in_order) {
    return Unimplemented("cuBLASLt {} has no algorithm for the product {} on {}", cublasLtGetVersion(),
                         gemm->spec().ToString(), options_.device_name);
  }
  if (candidates.size() == 1 && !in_order) return Choice{ToHex(candidates[0]), true};
  TuningOperands memory(lent_, lent_bytes_);
  const absl::Status status = memory.Allocate(stream_, gemm->spec());
  if (absl::IsResourceExhausted(status))
    return Choice{in_order ? std::string(kOwnInOrder) : ToHex(candidates[0]), false};
  RETURN_IF_ERROR(status);
  if (in_order) {
    ASSIGN_OR_RETURN(candidates, InOrder(gemm, stream_, &memory, candidates));
    if (candidates.empty()) return Choice{std::string(kOwnInOrder), true};
  }
  ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t fastest, Fastest(gemm, stream_, memory.operands(), candidates));
  return Choice{ToHex(fastest), true};
}

absl::StatusOr<std::shared_ptr<Gemm>> GemmTuner::Prepare(const GemmSpec& spec) {
  ASSIGN_OR_RETURN(std::shared_ptr<Gemm> gemm, Gemm::Create(handle_, spec));
  const std::string key = KeyOf(spec);
  const ChoiceFile::IsGood is_good = [&](const std::string& choice) {
    if (spec.in_order && choice == kOwnInOrder) return true;
    const std::optional<cublasLtMatmulAlgo_t> algorithm = FromHex(choice);
    return algorithm && gemm->Accepts(*algorithm, options_.deterministic);
  };
  std::optional<std::string> choice = options_.choices->Find(key, is_good);
  if (!choice) {
    ASSIGN_OR_RETURN(const Choice chosen, Choose(gemm.get()));
    choice = chosen.text;
    if (chosen.is_kept) {
      ASSIGN_OR_RETURN(choice, options_.choices->Keep(key, *choice, is_good));
    } else {
      options_.choices->Remember(key, *choice);
    }
  }
  if (*choice == kOwnInOrder) return nullptr;
  gemm->set_algorithm(*FromHex(*choice));
  return gemm;
}

}  // namespace engine::backend::cuda
