#include "engine/generate/cached_decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
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
  std::vector<std::int32_t> temperatures;  // the bits of fp32

  // The words of the input of this name.
  const std::vector<std::int32_t>& Of(const std::string& input) const {
    if (input == model::kTokens) return tokens;
    if (input == model::kCacheSlots) return slots;
    if (input == model::kTemperatures) return temperatures;
    return input == model::kWantedTokens ? wanted : positions;
  }
};

std::int32_t TemperatureBits(double temperature) {
  return std::bit_cast<std::int32_t>(temperature > 0 ? static_cast<float>(temperature) : 1.0F);
}

// The largest logits of a rank's own columns, and the sums over all columns, as the rank tells them.
struct RankTop {
  std::vector<std::int32_t> tokens;  // [samples, count], −1 behind the last
  std::vector<float> values;
  std::vector<float> log_sums;  // [samples, 2], of all ranks
  std::int64_t count = 0;
};

// What ranks' parts of a row say of the whole: a rank has more tokens than it tells, so that all are known only before the last of
// each.
Likeliest Joined(const std::vector<RankTop>& parts, std::int64_t row, std::int64_t vocabulary) {
  Likeliest joined;
  std::optional<Likelihood> end;  // what comes after it is not known
  for (const RankTop& part : parts) {
    Likelihood last;
    for (std::int64_t n = 0; n < part.count; ++n) {
      const auto at = static_cast<std::size_t>(row * part.count + n);
      last = {part.tokens[at], part.values[at]};
      if (last.token >= 0) joined.tokens.push_back(last);
    }
    if (last.token >= 0 && (!end || IsLikelier(last, *end))) end = last;
  }
  std::ranges::sort(joined.tokens, IsLikelier);
  if (end && std::ssize(joined.tokens) < vocabulary) {
    while (IsLikelier(*end, joined.tokens.back())) joined.tokens.pop_back();
  }
  joined.log_sum = parts.front().log_sums[static_cast<std::size_t>(2 * row)];
  joined.tempered_log_sum = parts.front().log_sums[static_cast<std::size_t>(2 * row + 1)];
  return joined;
}

class CachedDecoder : public Decoder {
 public:
  CachedDecoder(const plan::Plan& plan, state::Ranks& ranks, const driver::GenerationShape& shape)
      : plan_(plan), ranks_(ranks), shape_(shape), lengths_(static_cast<std::size_t>(shape.slots), 0) {}

  std::int64_t slots() const override { return shape_.slots; }
  std::int64_t context() const override { return shape_.context; }
  std::int64_t vocabulary() const override { return plan_.vocab; }

  absl::Status Prefill(std::int64_t slot, std::span<const std::int32_t> tokens, std::int64_t rows,
                       double temperature) override {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const plan::FormId form = Smallest(plan::ProgramKind::kPrefill, count);
    // The logits of so many more tokens than the program gives are made token by token.
    const std::int64_t later = std::max<std::int64_t>(0, rows - WantedOf(form));
    const std::int64_t first = count - later;
    RETURN_IF_ERROR(
        Begin(slot, tokens.first(static_cast<std::size_t>(first)), rows - later, form, temperature));
    std::vector<float> read;
    std::vector<float> read_sums;
    for (std::int64_t i = first; i < count; ++i) {
      const std::int64_t on_device = i == first ? rows - later : 1;
      read.resize(read.size() + static_cast<std::size_t>(on_device * plan_.vocab));
      RETURN_IF_ERROR(
          ReadFromDevice(first_row_, on_device, read.data() + std::ssize(read) - on_device * plan_.vocab));
      RETURN_IF_ERROR(AppendLogSums(first_row_, on_device, &read_sums));
      const Next next = {slot, tokens[static_cast<std::size_t>(i)], temperature};
      RETURN_IF_ERROR(Step({&next, 1}));
    }
    read_ = std::move(read);
    read_sums_ = std::move(read_sums);
    return absl::OkStatus();
  }

  absl::Status Step(std::span<const Next> next) override {
    const plan::FormId form = Smallest(plan::ProgramKind::kDecode, static_cast<std::int64_t>(next.size()));
    const auto samples = static_cast<std::size_t>(plan_.FormAt(form).samples);
    StepFeed batch;
    batch.tokens.resize(samples, 0);
    batch.positions.resize(samples, 0);
    batch.slots.resize(samples, -1);  // of those that fill the batch
    batch.temperatures.resize(samples, TemperatureBits(1));
    for (std::size_t i = 0; i < next.size(); ++i) {
      batch.tokens[i] = next[i].token;
      batch.slots[i] = static_cast<std::int32_t>(next[i].slot);
      batch.positions[i] = static_cast<std::int32_t>(lengths_[static_cast<std::size_t>(next[i].slot)]);
      batch.temperatures[i] = TemperatureBits(next[i].temperature);
    }
    RETURN_IF_ERROR(Run(form, batch, 0));
    for (const Next& of : next) ++lengths_[static_cast<std::size_t>(of.slot)];
    return absl::OkStatus();
  }

  absl::Status ReadLogits(std::int64_t first, std::int64_t count, std::vector<float>* logits) override {
    logits->resize(static_cast<std::size_t>(count * plan_.vocab));
    const std::int64_t read = std::clamp<std::int64_t>(RowsRead() - first, 0, count);
    std::copy_n(read_.begin() + std::min(first, RowsRead()) * plan_.vocab, read * plan_.vocab,
                logits->begin());
    if (read == count) return absl::OkStatus();
    return ReadFromDevice(first_row_ + first + read - RowsRead(), count - read,
                          logits->data() + read * plan_.vocab);
  }

  absl::StatusOr<std::vector<float>> ReadLogSums(std::int64_t first, std::int64_t count) override {
    if (plan_.top_logits[form_].row_log_sums < 0) return std::vector<float>();
    const std::int64_t read = std::clamp<std::int64_t>(RowsRead() - first, 0, count);
    std::vector<float> sums;
    if (read > 0) sums.assign(read_sums_.begin() + first, read_sums_.begin() + first + read);
    if (read < count)
      RETURN_IF_ERROR(AppendLogSums(first_row_ + first + read - RowsRead(), count - read, &sums));
    return sums;
  }

  // The device has it of the last token of each sample.
  absl::StatusOr<std::optional<Likeliest>> ReadLikeliest(std::int64_t row) override {
    const bool begins = plan_.FormAt(form_).kind == plan::ProgramKind::kPrefill;
    const std::int64_t of_device = row - RowsRead() + first_row_;
    if (row < RowsRead() || (begins && of_device + 1 != WantedOf(form_))) return std::nullopt;
    if (tops_.empty()) RETURN_IF_ERROR(ReadTops());
    const std::int64_t of_sample = begins ? 0 : of_device;
    const auto sums = std::span(tops_.front().log_sums).subspan(static_cast<std::size_t>(2 * of_sample), 2);
    if (!std::isfinite(sums[0]) || !std::isfinite(sums[1])) return std::nullopt;
    Likeliest likeliest = Joined(tops_, of_sample, plan_.vocab);
    ASSIGN_OR_RETURN(const std::vector<float> row_sums, ReadLogSums(row, 1));
    if (!row_sums.empty()) likeliest.row_log_sum = row_sums[0];
    return likeliest;
  }

 private:
  // The form of the fewest samples or tokens that are enough.
  plan::FormId Smallest(plan::ProgramKind kind, std::int64_t count) const {
    plan::FormId best = -1;
    for (plan::FormId form = plan::kFirstGenerationForm; form < plan_.FormsEnd(); ++form) {
      if (plan_.FormAt(form).kind == kind && FormSize(form) >= count &&
          (best < 0 || FormSize(form) < FormSize(best)))
        best = form;
    }
    ENGINE_CHECK(best >= 0, "no program is for {} samples or tokens", count);
    return best;
  }
  std::int64_t FormSize(plan::FormId form) const {
    const plan::Form& of = plan_.FormAt(form);
    return of.kind == plan::ProgramKind::kDecode ? of.samples : of.tokens;
  }
  // Of how many tokens of a sample there are logits.
  std::int64_t WantedOf(plan::FormId form) const {
    return plan_.values[static_cast<std::size_t>(plan_.logits[form].value)].shape[1];
  }

  std::int64_t RowsRead() const { return static_cast<std::int64_t>(read_.size()) / plan_.vocab; }

  // A sequence begins: what is behind its tokens is padding, the last one again at the same position. The last rows that the
  // program gives are those of the last tokens.
  absl::Status Begin(std::int64_t slot, std::span<const std::int32_t> tokens, std::int64_t rows,
                     plan::FormId form, double temperature) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const std::int64_t wanted = WantedOf(form);
    StepFeed batch;
    batch.temperatures = {TemperatureBits(temperature)};
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
    RETURN_IF_ERROR(Run(form, batch, wanted - rows));
    lengths_[static_cast<std::size_t>(slot)] = count;
    return absl::OkStatus();
  }

  // `first_row`: of the form's rows, that which is the caller's first.
  absl::Status Run(plan::FormId form, const StepFeed& batch, std::int64_t first_row) {
    form_ = form;
    first_row_ = first_row;
    read_.clear();
    read_sums_.clear();
    tops_.clear();
    row_sums_.clear();
    const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                            const TensorView& host) -> absl::Status {
      const std::vector<std::int32_t>& numbers = batch.Of(input);
      ENGINE_CHECK(host.shape.elements() == static_cast<std::int64_t>(numbers.size()), "{} of {} numbers",
                   input, host.shape.elements());
      std::memcpy(host.data, numbers.data(), numbers.size() * sizeof(std::int32_t));
      return absl::OkStatus();
    };
    return ranks_.Run([&](executor::RankExecutor& rank) { return rank.Generate(form, feed); });
  }

  // Calls body(rank) for the ranks that have parts of the logits.
  template <typename Body>
  absl::Status ForEachLast(const Body& body) {
    for (const std::unique_ptr<executor::RankExecutor>& rank : ranks_.executors()) {
      if (rank->stage().chunks.back().end_unit != static_cast<std::int32_t>(plan_.units.size())) continue;
      RETURN_IF_ERROR(body(*rank));
    }
    return absl::OkStatus();
  }

  // Rows [first, first + count) of the form's logits [rows, vocabulary]: ranks' parts are all of it.
  absl::Status ReadFromDevice(std::int64_t first, std::int64_t count, float* logits) {
    return ForEachLast([&](executor::RankExecutor& rank) { return ReadPart(rank, first, count, logits); });
  }

  absl::Status ReadTops() {
    std::vector<RankTop> tops;
    RETURN_IF_ERROR(ForEachLast([&](executor::RankExecutor& rank) -> absl::Status {
      const std::vector<TensorView> views = rank.TopLogits(form_);
      ENGINE_CHECK(views.size() >= 3, "{} outputs of a form that generates", views.size());
      // Ranks that tell of the same columns tell the same.
      const bool tells_all = Length(views[0].extent.dims[1]) == views[0].logical[1];
      if (tells_all && !tops.empty()) return absl::OkStatus();
      RankTop& top = tops.emplace_back();
      top.count = views[0].shape[1];
      RETURN_IF_ERROR(Download(rank, views[0], &top.tokens));
      RETURN_IF_ERROR(Download(rank, views[1], &top.values));
      return Download(rank, views[2], &top.log_sums);
    }));
    tops_ = std::move(tops);
    return absl::OkStatus();
  }

  // The sums of these rows of the form's logits, where it makes them: one rank makes all, which are read once.
  absl::Status AppendLogSums(std::int64_t first, std::int64_t count, std::vector<float>* sums) {
    if (plan_.top_logits[form_].row_log_sums < 0) return absl::OkStatus();
    constexpr std::size_t kRowSums = 3;  // of RankExecutor::TopLogits
    if (row_sums_.empty()) {
      RETURN_IF_ERROR(ForEachLast([&](executor::RankExecutor& rank) {
        return Download(rank, rank.TopLogits(form_)[kRowSums], &row_sums_);
      }));
    }
    sums->insert(sums->end(), row_sums_.begin() + first, row_sums_.begin() + first + count);
    return absl::OkStatus();
  }

  template <typename T>
  static absl::Status Download(executor::RankExecutor& rank, const TensorView& view, std::vector<T>* out) {
    ENGINE_CHECK(SizeOf(view.dtype) == sizeof(T), "{} of {} bytes", Name(view.dtype), sizeof(T));
    out->resize(static_cast<std::size_t>(view.shape.elements()));
    return rank.backend().Download(out->data(), static_cast<const std::byte*>(view.data),
                                   view.shape.elements() * SizeOf(view.dtype));
  }

  absl::Status ReadPart(executor::RankExecutor& rank, std::int64_t first, std::int64_t count, float* logits) {
    const TensorView view = rank.Logits(form_);
    const std::int64_t width = view.shape[view.shape.rank() - 1];
    const std::int64_t offset = first * width * SizeOf(view.dtype);
    part_.resize(static_cast<std::size_t>(count * width));
    RETURN_IF_ERROR(state::DownloadFloats(static_cast<const std::byte*>(view.data) + offset, view.dtype,
                                          rank.backend(), part_));
    for (std::int64_t r = 0; r < count; ++r) {
      std::int64_t at = r * width;
      for (const Interval& piece : view.extent.dims[view.shape.rank() - 1]) {
        const std::int64_t known = std::min(piece.length, plan_.vocab - piece.start);  // no padding
        if (known > 0) std::copy_n(part_.begin() + at, known, logits + r * plan_.vocab + piece.start);
        at += piece.length;
      }
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  state::Ranks& ranks_;
  const driver::GenerationShape shape_;
  std::vector<std::int64_t> lengths_;  // by slot: tokens that it holds
  // The last program that ran, and what of its rows is the caller's: those that were read before it ran, and its own from
  // first_row_ on.
  plan::FormId form_ = -1;
  std::int64_t first_row_ = 0;
  std::vector<float> read_, read_sums_;  // logits, and their sums where the plan has them
  std::vector<RankTop> tops_;            // empty: not read
  std::vector<float> row_sums_;          // likewise, of all rows of the form
  std::vector<float> part_;              // a rank's part of logits
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
