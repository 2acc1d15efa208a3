#include <cstddef>
#include <string>

#include "engine/base/half.h"
#include "engine/base/status.h"
#include "engine/generate/decoder.h"
#include "engine/model/build.h"

namespace engine::generate {
namespace {

class WindowDecoder final : public Decoder {
 public:
  WindowDecoder(const plan::Plan& plan, executor::RankExecutor& executor, std::int64_t slots)
      : plan_(plan), executor_(executor), tokens_(static_cast<std::size_t>(slots)) {}

  std::int64_t slots() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t context() const override { return plan_.sequence; }
  std::int64_t vocabulary() const override { return plan_.vocab; }

  absl::Status Prefill(std::span<const Prompt> prompts) override {
    ENGINE_CHECK(prompts.size() == 1, "{} prompts at once on one rank", prompts.size());
    const Prompt& prompt = prompts[0];
    std::vector<std::int32_t>& held = tokens_[static_cast<std::size_t>(prompt.slot)];
    held.assign(prompt.tokens.begin(), prompt.tokens.end());
    rows_.resize(static_cast<std::size_t>(prompt.rows * plan_.vocab));
    return Evaluate(held, prompt.rows, rows_.data());
  }

  absl::Status Step(std::span<const Next> next) override {
    rows_.resize(next.size() * static_cast<std::size_t>(plan_.vocab));
    float* at = rows_.data();
    for (const Next& one : next) {
      std::vector<std::int32_t>& held = tokens_[static_cast<std::size_t>(one.slot)];
      held.push_back(one.token);
      RETURN_IF_ERROR(Evaluate(held, 1, at));
      at += plan_.vocab;
    }
    return absl::OkStatus();
  }

  absl::Status ReadLogits(std::int64_t first, std::int64_t count, std::vector<float>* logits) override {
    const auto begin = rows_.begin() + first * plan_.vocab;
    logits->assign(begin, begin + count * plan_.vocab);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<Likeliest>> ReadLikeliest(std::int64_t) override { return std::nullopt; }

 private:
  // The logits that follow each of the last `rows` tokens, to `out` [rows, vocabulary].
  absl::Status Evaluate(const std::vector<std::int32_t>& tokens, std::int64_t rows, float* out) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                            const backend::TensorView& host) -> absl::Status {
      for (std::int64_t s = 0; s < plan_.sequence; ++s) {
        // Causal attention keeps what stands after the last token out of its logits; steps that mix tokens otherwise, such as
        // experts with a capacity, do not (LoadedModel::note).
        const std::int32_t token = s < count ? tokens[static_cast<std::size_t>(s)] : 0;
        host.as<std::int32_t>()[s] = input == model::kPositions ? static_cast<std::int32_t>(s) : token;
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(executor_.Evaluate(feed).status());
    for (std::int64_t r = 0; r < rows; ++r) {
      RETURN_IF_ERROR(DownloadRow(count - rows + r, out + r * plan_.vocab));
    }
    return absl::OkStatus();
  }

  // One row of the logits, without the padded classes.
  absl::Status DownloadRow(std::int64_t row, float* out) {
    const backend::TensorView logits = executor_.Logits();
    const std::byte* from =
        static_cast<const std::byte*>(logits.data) + row * plan_.vocab_rows * SizeOf(logits.dtype);
    const std::int64_t bytes = plan_.vocab * SizeOf(logits.dtype);
    if (logits.dtype == DType::kF32) return executor_.backend().Download(out, from, bytes);
    stored_.resize(static_cast<std::size_t>(bytes));
    RETURN_IF_ERROR(executor_.backend().Download(stored_.data(), from, bytes));
    const std::span<float> row_out(out, static_cast<std::size_t>(plan_.vocab));
    if (logits.dtype == DType::kBF16) {
      FloatsFromBFloat16(stored_.data(), row_out);
    } else if (logits.dtype == DType::kF16) {
      FloatsFromHalf(stored_.data(), row_out);
    } else {
      return Internal("logits of type {}", Name(logits.dtype));
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  executor::RankExecutor& executor_;
  std::vector<std::vector<std::int32_t>> tokens_;  // by slot
  std::vector<float> rows_;                        // logits of the last call
  std::vector<std::byte> stored_;                  // a row as the device has it
};

}  // namespace

std::unique_ptr<Decoder> MakeWindowDecoder(const plan::Plan& plan, executor::RankExecutor& executor,
                                           std::int64_t slots) {
  return std::make_unique<WindowDecoder>(plan, executor, slots);
}

}  // namespace engine::generate
