#include "engine/generate/cached_decoder.h"

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/build.h"
#include "engine/model/generation.h"
#include "engine/state/weights.h"

namespace engine::generate {
namespace {

using backend::TensorView;

// Powers of two from the first on, and `last`.
std::vector<std::int64_t> Doubling(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = first; size < last; size *= 2) sizes.push_back(size);
  sizes.push_back(last);
  return sizes;
}

// What a program is fed: samples of so many tokens, and their places.
struct StepFeed {
  std::vector<std::int32_t> tokens, positions, slots, wanted;

  // The numbers of the input of this name.
  const std::vector<std::int32_t>& Of(const std::string& input) const {
    if (input == model::kTokens) return tokens;
    if (input == model::kCacheSlots) return slots;
    return input == model::kWantedTokens ? wanted : positions;
  }
};

class CachedDecoder : public Decoder {
 public:
  CachedDecoder(const plan::Plan& plan, state::Ranks& ranks, const driver::GenerationShape& shape)
      : plan_(plan), ranks_(ranks), shape_(shape), lengths_(static_cast<std::size_t>(shape.slots), 0) {}

  std::int64_t slots() const override { return shape_.slots; }
  std::int64_t context() const override { return shape_.context; }
  std::int64_t vocabulary() const override { return plan_.vocab; }

  absl::Status Prefill(std::int64_t slot, std::span<const std::int32_t> tokens, std::int64_t rows,
                       std::vector<float>* logits) override {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const plan::FormId form = Smallest(plan::ProgramKind::kPrefill, count);
    const std::int64_t wanted = WantedOf(form);
    // The logits of so many more tokens than the program gives are made token by token.
    const std::int64_t later = std::max<std::int64_t>(0, rows - wanted);
    const std::int64_t first = count - later;
    RETURN_IF_ERROR(Begin(slot, tokens.first(static_cast<std::size_t>(first)), rows - later, form, logits));
    for (std::int64_t i = first; i < count; ++i) {
      const Next next = {slot, tokens[static_cast<std::size_t>(i)]};
      std::vector<float> row;
      RETURN_IF_ERROR(Step({&next, 1}, &row));
      logits->insert(logits->end(), row.begin(), row.end());
    }
    return absl::OkStatus();
  }

  absl::Status Step(std::span<const Next> next, std::vector<float>* logits) override {
    const plan::FormId form = Smallest(plan::ProgramKind::kDecode, static_cast<std::int64_t>(next.size()));
    const auto samples = static_cast<std::size_t>(plan_.FormAt(form).samples);
    StepFeed batch;
    batch.tokens.resize(samples, 0);
    batch.positions.resize(samples, 0);
    batch.slots.resize(samples, -1);  // of those that fill the batch
    for (std::size_t i = 0; i < next.size(); ++i) {
      batch.tokens[i] = next[i].token;
      batch.slots[i] = static_cast<std::int32_t>(next[i].slot);
      batch.positions[i] = static_cast<std::int32_t>(lengths_[static_cast<std::size_t>(next[i].slot)]);
    }
    RETURN_IF_ERROR(Run(form, batch));
    for (const Next& of : next) ++lengths_[static_cast<std::size_t>(of.slot)];
    return ReadLogits(form, 0, static_cast<std::int64_t>(next.size()), logits);
  }

 private:
  // The form of the fewest samples or tokens that are enough.
  plan::FormId Smallest(plan::ProgramKind kind, std::int64_t count) const {
    plan::FormId best = -1;
    for (plan::FormId form = plan::kFirstGenerationForm; form < plan_.FormsEnd(); ++form) {
      if (plan_.FormAt(form).kind == kind && SizeOf(form) >= count &&
          (best < 0 || SizeOf(form) < SizeOf(best)))
        best = form;
    }
    ENGINE_CHECK(best >= 0, "no program is for {} samples or tokens", count);
    return best;
  }
  std::int64_t SizeOf(plan::FormId form) const {
    const plan::Form& of = plan_.FormAt(form);
    return of.kind == plan::ProgramKind::kDecode ? of.samples : of.tokens;
  }
  // Of how many tokens of a sample there are logits.
  std::int64_t WantedOf(plan::FormId form) const {
    return plan_.values[static_cast<std::size_t>(plan_.logits[form].value)].shape[1];
  }

  // A sequence begins: what is behind its tokens is padding, the last one again at the same position.
  absl::Status Begin(std::int64_t slot, std::span<const std::int32_t> tokens, std::int64_t rows,
                     plan::FormId form, std::vector<float>* logits) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const std::int64_t wanted = WantedOf(form);
    const bool all = wanted == plan_.FormAt(form).tokens;  // else those of wanted_tokens
    StepFeed batch;
    batch.slots = {static_cast<std::int32_t>(slot)};
    for (std::int64_t s = 0; s < plan_.FormAt(form).tokens; ++s) {
      const std::int64_t at = std::min(s, count - 1);
      batch.tokens.push_back(tokens[static_cast<std::size_t>(at)]);
      batch.positions.push_back(static_cast<std::int32_t>(at));
    }
    for (std::int64_t r = 0; r < wanted; ++r) {
      const std::int64_t at = std::max<std::int64_t>(0, count - wanted + r);
      batch.wanted.push_back(static_cast<std::int32_t>(at));
    }
    RETURN_IF_ERROR(Run(form, batch));
    lengths_[static_cast<std::size_t>(slot)] = count;
    return ReadLogits(form, all ? count - rows : wanted - rows, rows, logits);
  }

  absl::Status Run(plan::FormId form, const StepFeed& batch) {
    const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                            const TensorView& host) -> absl::Status {
      const std::vector<std::int32_t>& numbers = batch.Of(input);
      ENGINE_CHECK(host.shape.elements() == static_cast<std::int64_t>(numbers.size()), "{} of {} numbers",
                   input, host.shape.elements());
      std::copy(numbers.begin(), numbers.end(), host.as<std::int32_t>());
      return absl::OkStatus();
    };
    return ranks_.Run([&](executor::RankExecutor& rank) { return rank.Generate(form, feed); });
  }

  // Rows [first, first + count) of the form's logits [rows, vocabulary], of all ranks that have a part of them.
  absl::Status ReadLogits(plan::FormId form, std::int64_t first, std::int64_t count,
                          std::vector<float>* logits) {
    logits->resize(static_cast<std::size_t>(count * plan_.vocab));  // ranks' parts are all of it
    for (const std::unique_ptr<executor::RankExecutor>& rank : ranks_.executors()) {
      if (rank->stage().chunks.back().end_unit != static_cast<std::int32_t>(plan_.units.size())) continue;
      RETURN_IF_ERROR(ReadPart(*rank, form, first, count, logits));
    }
    return absl::OkStatus();
  }

  absl::Status ReadPart(executor::RankExecutor& rank, plan::FormId form, std::int64_t first,
                        std::int64_t count, std::vector<float>* logits) {
    const TensorView view = rank.Logits(form);
    const std::int64_t width = view.shape[view.shape.rank() - 1];
    const std::int64_t offset = first * width * engine::SizeOf(view.dtype);
    part_.resize(static_cast<std::size_t>(count * width));
    RETURN_IF_ERROR(state::DownloadFloats(static_cast<const std::byte*>(view.data) + offset, view.dtype,
                                          rank.backend(), part_));
    for (std::int64_t r = 0; r < count; ++r) {
      std::int64_t at = r * width;
      for (const Interval& piece : view.extent.dims[view.shape.rank() - 1]) {
        const std::int64_t known = std::min(piece.length, plan_.vocab - piece.start);  // no padding
        if (known > 0)
          std::copy_n(part_.begin() + at, known, logits->begin() + r * plan_.vocab + piece.start);
        at += piece.length;
      }
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  state::Ranks& ranks_;
  const driver::GenerationShape shape_;
  std::vector<std::int64_t> lengths_;  // by slot: tokens that it holds
  std::vector<float> part_;            // a rank's part of logits
};

}  // namespace

driver::GenerationShape ShapeFor(std::int64_t slots, std::int64_t context) {
  constexpr std::int64_t kLeastPrompt = 16;
  return {.slots = slots,
          .context = context,
          .prefill_tokens = Doubling(kLeastPrompt, context),
          .decode_batches = Doubling(1, slots)};
}

std::unique_ptr<Decoder> MakeCachedDecoder(const plan::Plan& plan, state::Ranks& ranks,
                                           const driver::GenerationShape& shape) {
  return std::make_unique<CachedDecoder>(plan, ranks, shape);
}

}  // namespace engine::generate
