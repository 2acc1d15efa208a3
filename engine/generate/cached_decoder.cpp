#include "engine/generate/cached_decoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
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
  std::vector<std::int32_t> tokens;  // [samples, count], the likeliest first, −1 behind the last
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
    const std::ptrdiff_t before = std::ssize(joined.tokens);
    joined.tokens.reserve(joined.tokens.size() + static_cast<std::size_t>(part.count));
    Likelihood last;
    for (std::int64_t n = 0; n < part.count; ++n) {
      const auto at = static_cast<std::size_t>(row * part.count + n);
      last = {part.tokens[at], part.values[at]};
      if (last.token >= 0) joined.tokens.push_back(last);
    }
    if (last.token >= 0 && (!end || IsLikelier(last, *end))) end = last;
    std::ranges::inplace_merge(joined.tokens, joined.tokens.begin() + before, IsLikelier);
  }
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
      : plan_(plan),
        ranks_(ranks),
        shape_(shape),
        slot_ranks_(plan.mesh.size(plan::Axis::kDp) * plan.mesh.size(plan::Axis::kEp)),
        lengths_(static_cast<std::size_t>(shape.slots), 0) {}

  std::int64_t slots() const override { return shape_.slots; }
  std::int64_t context() const override { return shape_.context; }
  std::int64_t vocabulary() const override { return plan_.vocab; }
  std::int64_t slot_ranks() const override { return slot_ranks_; }

  // What is behind a prompt's tokens is padding, the last one again at the same position. Ranks without a prompt have the first one, so that
  // experts see the tokens of a text, and keep nothing of it.
  absl::Status Prefill(std::span<const Prompt> prompts) override {
    std::int64_t longest = 0;
    std::vector<const Prompt*> of_rank(static_cast<std::size_t>(slot_ranks_), nullptr);
    for (const Prompt& prompt : prompts) {
      longest = std::max<std::int64_t>(longest, std::ssize(prompt.tokens));
      of_rank[static_cast<std::size_t>(RankOf(prompt.slot))] = &prompt;
    }
    form_ = Smallest(plan::ProgramKind::kPrefill, longest);
    rows_.clear();
    feed_ = {};
    for (const Prompt* held : of_rank) {
      const Prompt& prompt = held == nullptr ? prompts.front() : *held;
      const std::int64_t count = std::ssize(prompt.tokens);
      feed_.slots.push_back(held == nullptr ? kNoSlot : SlotOnRank(prompt.slot));
      feed_.temperatures.push_back(TemperatureBits(prompt.temperature));
      for (std::int64_t s = 0; s < plan_.FormAt(form_).tokens; ++s) {
        const std::int64_t at = std::min(s, count - 1);
        feed_.tokens.push_back(prompt.tokens[static_cast<std::size_t>(at)]);
        feed_.positions.push_back(static_cast<std::int32_t>(at));
      }
    }
    for (const Prompt& prompt : prompts) {
      for (std::int64_t back = prompt.rows - 1; back >= 0; --back)
        rows_.push_back({.sample = RankOf(prompt.slot), .back = back});
    }
    RETURN_IF_ERROR(RunWindow(0));
    for (const Prompt& prompt : prompts)
      lengths_[static_cast<std::size_t>(prompt.slot)] = std::ssize(prompt.tokens);
    return absl::OkStatus();
  }

  absl::Status Step(std::span<const Next> next) override {
    std::vector<std::int64_t> of_rank(static_cast<std::size_t>(slot_ranks_), 0);
    for (const Next& one : next) ++of_rank[static_cast<std::size_t>(RankOf(one.slot))];
    form_ = Smallest(plan::ProgramKind::kDecode, std::ranges::max(of_rank));
    const auto samples = static_cast<std::size_t>(plan_.FormAt(form_).samples);
    feed_ = {};
    feed_.tokens.resize(samples, 0);
    feed_.positions.resize(samples, 0);
    feed_.slots.resize(samples, kNoSlot);  // of those that fill the batch
    feed_.temperatures.resize(samples, TemperatureBits(1));
    rows_.clear();
    std::vector<std::int64_t> placed(of_rank.size(), 0);
    for (const Next& one : next) {
      const std::int64_t rank = RankOf(one.slot);
      const std::int64_t sample = rank * SamplesOf(form_) + placed[static_cast<std::size_t>(rank)]++;
      const auto at = static_cast<std::size_t>(sample);
      feed_.tokens[at] = one.token;
      feed_.slots[at] = SlotOnRank(one.slot);
      feed_.positions[at] = static_cast<std::int32_t>(lengths_[static_cast<std::size_t>(one.slot)]);
      feed_.temperatures[at] = TemperatureBits(one.temperature);
      rows_.push_back({.sample = sample});
    }
    RETURN_IF_ERROR(RunWindow(0));
    for (const Next& one : next) ++lengths_[static_cast<std::size_t>(one.slot)];
    return absl::OkStatus();
  }

  absl::Status ReadLogits(std::int64_t first, std::int64_t count, std::vector<float>* logits) override {
    logits->resize(static_cast<std::size_t>(count * plan_.vocab));
    for (std::int64_t done = 0; done < count;) {
      ASSIGN_OR_RETURN(const std::int64_t row, OnDevice(first + done));
      std::int64_t rows = 1;  // that lie one behind the other
      while (done + rows < count && WindowOf(first + done + rows) == window_ &&
             DeviceRow(first + done + rows) == row + rows)
        ++rows;
      float* const to = logits->data() + done * plan_.vocab;
      RETURN_IF_ERROR(
          ForEachLast([&](executor::RankExecutor& rank) { return ReadPart(rank, row, rows, to); }));
      done += rows;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> ReadLogSums(std::int64_t first, std::int64_t count) override {
    std::vector<float> sums;
    if (plan_.top_logits[form_].row_log_sums < 0) return sums;
    for (std::int64_t row = first; row < first + count; ++row) {
      ASSIGN_OR_RETURN(const std::int64_t at, OnDevice(row));
      if (row_sums_.empty()) RETURN_IF_ERROR(ReadRowSums());
      sums.push_back(row_sums_[static_cast<std::size_t>(at)]);
    }
    return sums;
  }

  // The device has it of the last token of each sample.
  absl::StatusOr<std::optional<Likeliest>> ReadLikeliest(std::int64_t row) override {
    const RowPlace place = rows_[static_cast<std::size_t>(row)];
    if (place.back > 0) return std::nullopt;
    RETURN_IF_ERROR(OnDevice(row).status());
    if (tops_.empty()) RETURN_IF_ERROR(ReadTops());
    const std::vector<RankTop>& parts = tops_[static_cast<std::size_t>(place.sample / SamplesOf(form_))];
    const std::int64_t sample = place.sample % SamplesOf(form_);
    const auto sums = std::span(parts.front().log_sums).subspan(static_cast<std::size_t>(2 * sample), 2);
    if (!std::isfinite(sums[0]) || !std::isfinite(sums[1])) return std::nullopt;
    Likeliest likeliest = Joined(parts, sample, plan_.vocab);
    ASSIGN_OR_RETURN(const std::vector<float> row_sums, ReadLogSums(row, 1));
    if (!row_sums.empty()) likeliest.row_log_sum = row_sums[0];
    return likeliest;
  }

 private:
  static constexpr std::int32_t kNoSlot = -1;

  // The token that one of the caller's rows follows: its sample, of all that the form has, and how many of the sample's tokens come after it.
  struct RowPlace {
    std::int64_t sample = 0;
    std::int64_t back = 0;
  };

  // The form of the fewest samples or tokens of a rank that are enough.
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
    return of.kind == plan::ProgramKind::kDecode ? SamplesOf(form) : of.tokens;
  }
  // Of a rank.
  std::int64_t SamplesOf(plan::FormId form) const { return plan_.FormAt(form).samples / slot_ranks_; }
  // Of how many tokens of a sample there are logits.
  std::int64_t Wanted() const {
    return plan_.values[static_cast<std::size_t>(plan_.logits[form_].value)].shape[1];
  }

  // Of the ranks that have slots, and the slot's number there.
  std::int64_t RankOf(std::int64_t slot) const { return slot % slot_ranks_; }
  std::int32_t SlotOnRank(std::int64_t slot) const { return static_cast<std::int32_t>(slot / slot_ranks_); }

  // A run of a form gives logits of a window of so many tokens of each sample: the last ones in window 0, those before them in window 1.
  std::int64_t WindowOf(std::int64_t row) const {
    return rows_[static_cast<std::size_t>(row)].back / Wanted();
  }
  // Of the logits [samples, wanted, vocabulary].
  std::int64_t DeviceRow(std::int64_t row) const {
    const RowPlace& place = rows_[static_cast<std::size_t>(row)];
    return (place.sample + 1) * Wanted() - 1 - place.back % Wanted();
  }
  // DeviceRow, when the device has the row: a prompt that is scored may have more of them than one run gives.
  absl::StatusOr<std::int64_t> OnDevice(std::int64_t row) {
    if (WindowOf(row) != window_) RETURN_IF_ERROR(RunWindow(WindowOf(row)));
    return DeviceRow(row);
  }

  // Runs the form with what it is fed, once more where another window of its logits is wanted: caches are as before then.
  absl::Status RunWindow(std::int64_t window) {
    const plan::Form& form = plan_.FormAt(form_);
    window_ = window;
    tops_.clear();
    row_sums_.clear();
    feed_.wanted.clear();
    for (std::int64_t sample = 0; sample < form.samples; ++sample) {
      const std::int64_t last = feed_.positions[static_cast<std::size_t>((sample + 1) * form.tokens - 1)];
      for (std::int64_t r = 1; r <= Wanted(); ++r) {
        const std::int64_t at = last - (window + 1) * Wanted() + r;
        feed_.wanted.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(0, at)));
      }
    }
    const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                            const TensorView& host) -> absl::Status {
      const std::vector<std::int32_t>& numbers = feed_.Of(input);
      ENGINE_CHECK(host.logical.elements() == std::ssize(numbers), "{} of {} numbers", input,
                   host.logical.elements());
      const std::int64_t held = host.shape.elements(1, host.shape.rank());
      const std::int64_t of_sample = host.logical.elements(1, host.logical.rank());
      const std::int64_t samples = host.shape[0];
      const auto* from = numbers.data() + FirstSample(host) * of_sample;
      auto* to = host.as<std::int32_t>();
      for (std::int64_t sample = 0; sample < samples; ++sample, from += of_sample, to += held) {
        if (held == 1) {
          *to = *from;
          continue;
        }
        for (std::int64_t i = 0; i < held; ++i) to[i] = from[LogicalIndex(host.extent.dims[1], i)];
      }
      return absl::OkStatus();
    };
    return ranks_.Run([&](executor::RankExecutor& rank) { return rank.Generate(form_, feed); });
  }

  // Of the samples, one behind the other, that a rank has.
  static std::int64_t FirstSample(const TensorView& view) { return view.extent.dims[0].front().start; }

  // Calls body(rank) for the ranks that have parts of the logits. Ranks of cp have the same.
  template <typename Body>
  absl::Status ForEachLast(const Body& body) {
    for (const std::unique_ptr<executor::RankExecutor>& rank : ranks_.executors()) {
      if (rank->stage().chunks.back().end_unit != static_cast<std::int32_t>(plan_.units.size())) continue;
      if (rank->coordinates().axis[static_cast<std::size_t>(plan::Axis::kCp)] > 0) continue;
      RETURN_IF_ERROR(body(*rank));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTops() {
    // All of it is asked for before any is waited for.
    struct Asked {
      executor::RankExecutor* rank;
      std::vector<TensorView> views;
      std::array<std::int64_t, 3> tickets;
    };
    std::vector<std::vector<Asked>> asked(static_cast<std::size_t>(slot_ranks_));
    RETURN_IF_ERROR(ForEachLast([&](executor::RankExecutor& rank) -> absl::Status {
      const std::vector<TensorView> views = rank.TopLogits(form_);
      ENGINE_CHECK(views.size() >= 3, "{} outputs of a form that generates", views.size());
      std::vector<Asked>& parts = asked[static_cast<std::size_t>(FirstSample(views[0]) / SamplesOf(form_))];
      // Ranks that tell of the same columns tell the same.
      const bool tells_all = Length(views[0].extent.dims[1]) == views[0].logical[1];
      if (tells_all && !parts.empty()) return absl::OkStatus();
      Asked& part = parts.emplace_back(Asked{.rank = &rank, .views = views, .tickets = {}});
      for (std::size_t i = 0; i < part.tickets.size(); ++i) {
        ASSIGN_OR_RETURN(part.tickets[i], rank.backend().Read(BytesOf(views[i]), ByteCount(views[i])));
      }
      return absl::OkStatus();
    }));
    std::vector<std::vector<RankTop>> tops;
    for (const std::vector<Asked>& parts : asked) {
      std::vector<RankTop>& of_slot_rank = tops.emplace_back();
      for (const Asked& part : parts) {
        RankTop& top = of_slot_rank.emplace_back();
        top.count = part.views[0].shape[1];
        const auto take = [&](std::size_t i, auto* numbers) -> absl::Status {
          numbers->resize(static_cast<std::size_t>(part.views[i].shape.elements()));
          return part.rank->backend().WaitRead(part.tickets[i], numbers->data());
        };
        RETURN_IF_ERROR(take(0, &top.tokens));
        RETURN_IF_ERROR(take(1, &top.values));
        RETURN_IF_ERROR(take(2, &top.log_sums));
      }
    }
    tops_ = std::move(tops);
    return absl::OkStatus();
  }

  // The sums of all rows of the form's logits, which each rank makes of its samples.
  absl::Status ReadRowSums() {
    std::vector<float> all(static_cast<std::size_t>(plan_.FormAt(form_).samples * Wanted()));
    RETURN_IF_ERROR(ForEachLast([&](executor::RankExecutor& rank) -> absl::Status {
      constexpr std::size_t kRowSums = 3;  // of RankExecutor::TopLogits
      const TensorView view = rank.TopLogits(form_)[kRowSums];
      std::vector<float> sums(static_cast<std::size_t>(view.shape.elements()));
      RETURN_IF_ERROR(rank.backend().Download(sums.data(), BytesOf(view), ByteCount(view)));
      std::ranges::copy(sums, all.begin() + FirstSample(view) * Wanted());
      return absl::OkStatus();
    }));
    row_sums_ = std::move(all);
    return absl::OkStatus();
  }

  // The tensors that are read so have numbers of four bytes.
  static const std::byte* BytesOf(const TensorView& view) { return static_cast<const std::byte*>(view.data); }
  static std::int64_t ByteCount(const TensorView& view) {
    ENGINE_CHECK(SizeOf(view.dtype) == sizeof(float), "{} where numbers have four bytes", Name(view.dtype));
    return view.shape.elements() * SizeOf(view.dtype);
  }

  // Those of the rows [first, first + count) of the form's logits [rows, vocabulary] that the rank has, and of them its columns.
  absl::Status ReadPart(executor::RankExecutor& rank, std::int64_t first, std::int64_t count, float* logits) {
    const TensorView view = rank.Logits(form_);
    const std::int64_t width = view.shape[view.shape.rank() - 1];
    const std::int64_t begins = FirstSample(view) * Wanted();
    const std::int64_t from = std::max(first, begins);
    const std::int64_t rows = std::min(first + count, begins + view.shape[0] * Wanted()) - from;
    if (rows <= 0) return absl::OkStatus();
    const std::int64_t offset = (from - begins) * width * SizeOf(view.dtype);
    part_.resize(static_cast<std::size_t>(rows * width));
    RETURN_IF_ERROR(state::DownloadFloats(static_cast<const std::byte*>(view.data) + offset, view.dtype,
                                          rank.backend(), part_));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::int64_t at = r * width;
      for (const Interval& piece : view.extent.dims[view.shape.rank() - 1]) {
        const std::int64_t known = std::min(piece.length, plan_.vocab - piece.start);  // no padding
        float* const row = logits + (from - first + r) * plan_.vocab;
        if (known > 0) std::copy_n(part_.begin() + at, known, row + piece.start);
        at += piece.length;
      }
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  state::Ranks& ranks_;
  const driver::GenerationShape shape_;
  const std::int64_t slot_ranks_;      // dp · ep
  std::vector<std::int64_t> lengths_;  // by slot: tokens that it holds
  // The last call: its form, what it is fed, and the caller's rows.
  plan::FormId form_ = -1;
  StepFeed feed_;
  std::vector<RowPlace> rows_;
  // The last run of the form, and what was read of it; empty: nothing yet.
  std::int64_t window_ = 0;
  std::vector<std::vector<RankTop>> tops_;  // by rank that has slots
  std::vector<float> row_sums_;             // of all rows of the form
  std::vector<float> part_;                 // a rank's part of logits
};

}  // namespace

driver::GenerationShape ShapeFor(std::int64_t slots, std::int64_t context,
                                 const recipe::Parallelism& layout) {
  constexpr std::int64_t kLeastPrompt = 16;
  const auto rounded_up = [](std::int64_t count, std::int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
  };
  const std::int64_t ranks = layout.dp * layout.ep;
  const std::int64_t all = rounded_up(slots, ranks);
  return {.slots = all,
          .context = context,
          .prefill_tokens = Doubling(rounded_up(kLeastPrompt, 2 * layout.cp), context),
          .decode_batches = Doubling(1, all / ranks)};
}

std::unique_ptr<Decoder> MakeCachedDecoder(const plan::Plan& plan, state::Ranks& ranks,
                                           const driver::GenerationShape& shape) {
  return std::make_unique<CachedDecoder>(plan, ranks, shape);
}

}  // namespace engine::generate
