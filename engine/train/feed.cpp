#include "engine/train/feed.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/model/build.h"

namespace engine::train {
namespace {

// For which data on a server is asked before they are wanted. Samples follow one another over the borders of iterations.
constexpr std::int64_t kMicrobatchesAhead = 16;

// Where a document begins, and where the one behind it does.
struct Document {
  std::int32_t first, last;
};

// That of place s of a sample of `sequence` places, whose documents begin at `starts`.
Document DocumentOf(const std::vector<std::int32_t>& starts, std::int64_t s, std::int64_t sequence) {
  const auto next = std::upper_bound(starts.begin(), starts.end(), static_cast<std::int32_t>(s));
  return {*(next - 1), next == starts.end() ? static_cast<std::int32_t>(sequence) : *next};
}

// The samples of a batch that this process needs: what several inputs and ranks ask for is read once.
class Batch {
 public:
  Batch(const data::Source& source, data::Split split, const Samples& mean_over)
      : source_(source), split_(split), mean_over_(mean_over) {}

  absl::StatusOr<std::shared_ptr<const data::SampleTokens>> Read(std::int64_t index) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = samples_.find(index); found != samples_.end()) return found->second;
    }
    ASSIGN_OR_RETURN(data::SampleTokens read, source_.Read(split_, index));
    auto sample = std::make_shared<const data::SampleTokens>(std::move(read));
    const std::lock_guard lock(mutex_);
    return samples_.emplace(index, std::move(sample)).first->second;
  }

  absl::StatusOr<double> LabelFactor() {
    const std::lock_guard lock(mutex_);
    if (!factor_) {
      const std::int64_t labels = mean_over_.count * source_.sequence_length();
      const absl::StatusOr<std::int64_t> counted =
          source_.CountedLabels(split_, mean_over_.first, mean_over_.count);
      factor_ = !counted.ok()  ? absl::StatusOr<double>(counted.status())
                : *counted > 0 ? static_cast<double>(labels) / static_cast<double>(*counted)
                               : 0.0;
    }
    return *factor_;
  }

 private:
  const data::Source& source_;
  const data::Split split_;
  const Samples mean_over_;
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<const data::SampleTokens>> samples_;
  std::optional<absl::StatusOr<double>> factor_;
};

// One document, of which no token counts.
std::shared_ptr<const data::SampleTokens> EmptySample(std::int64_t sequence) {
  data::SampleTokens empty;
  empty.tokens.assign(static_cast<size_t>(sequence) + 1, 0);
  empty.targets.assign(empty.tokens.size(), 0);
  return std::make_shared<const data::SampleTokens>(std::move(empty));
}

// What an input of the model is made of.
class Input {
 public:
  Input(const std::string& name, const data::Source& source, std::int64_t sequence)
      : offset_(model::TokenOffset(name)),
        labels_(model::IsLabels(name)),
        spans_(name == model::kDocumentSpans),
        of_documents_(spans_ || (source.masks_documents() && name == model::kPositions)),
        sequence_(sequence) {}

  bool reads() const { return offset_ || of_documents_; }

  // Writes the number, or the two, of place s; returns what is behind them. `sample` may be null where nothing is read.
  std::int32_t* Write(const data::SampleTokens* sample, std::int64_t s, std::int32_t* out) const {
    if (offset_ && labels_) {
      *out++ = sample->Label(s, *offset_);
    } else if (offset_) {
      *out++ = s + *offset_ <= sequence_ ? sample->tokens[static_cast<size_t>(s + *offset_)] : -1;
    } else if (!of_documents_) {
      *out++ = static_cast<std::int32_t>(s);
    } else if (const Document document = DocumentOf(sample->starts, s, sequence_); spans_) {
      *out++ = document.first;
      *out++ = document.last;
    } else {
      *out++ = static_cast<std::int32_t>(s) - document.first;
    }
    return out;
  }

 private:
  std::optional<int> offset_;
  bool labels_, spans_, of_documents_;
  std::int64_t sequence_;
};

// The samples of a split that a rank's part of an input is made of.
struct RankSamples {
  const data::Source& source;
  data::Split split;
  std::int64_t first;          // of the batch
  std::int64_t of_microbatch;  // samples, of all ranks together
  const DimExtent& places;     // of the rank's samples among them

  std::int64_t At(std::int64_t microbatch, std::int64_t b) const {
    return first + microbatch * of_microbatch + LogicalIndex(places, b);
  }
  void Ask(std::int64_t microbatch, std::int64_t count, storage::When when) const {
    for (std::int64_t b = 0; b < count; ++b) source.Prefetch(split, At(microbatch, b), when);
  }
};

}  // namespace

void AskForSamples(const plan::Plan& plan, const data::Source& source, data::Split split,
                   std::int64_t first_sample, std::int64_t rank) {
  for (const plan::Chunk& chunk : plan.stages[static_cast<size_t>(plan.StageOfRank(rank))].chunks) {
    for (const plan::BufferRef& ref : chunk.passes[plan::kTrainForm].inputs) {
      const plan::LocalValue& value = plan.values[static_cast<size_t>(ref.value)];
      if (!Input(value.name, source, plan.sequence).reads()) continue;
      const Extent extent = value.layout.ExtentOf(value.shape, plan.mesh, plan.mesh.CoordinatesOf(rank));
      const RankSamples samples{source, split, first_sample, plan.microbatch_samples, extent.dims[0]};
      for (std::int64_t microbatch = 0; microbatch <= kMicrobatchesAhead; ++microbatch)
        samples.Ask(microbatch, value.local[0], storage::When::kLater);
    }
  }
}

executor::Feed MakeFeed(const plan::Plan& plan, const data::Source& source, data::Split split,
                        const Samples& of_batch, const Samples& mean_over) {
  const auto batch = std::make_shared<Batch>(source, split, mean_over);
  executor::Feed feed([&plan, &source, batch, split, of_batch](
                          const std::string& name, std::int64_t microbatch,
                          const backend::TensorView& host) -> absl::Status {
    const Input input(name, source, plan.sequence);
    std::int32_t* out = host.as<std::int32_t>();
    const RankSamples samples{source, split, of_batch.first, plan.microbatch_samples, host.extent.dims[0]};
    if (input.reads()) {
      samples.Ask(microbatch, host.shape[0], storage::When::kNow);
      // Before the first microbatch of an evaluation, nobody has asked for those that follow it.
      const std::int64_t nearest = microbatch == 0 ? 1 : kMicrobatchesAhead;
      for (std::int64_t ahead = nearest; ahead <= kMicrobatchesAhead; ++ahead)
        samples.Ask(microbatch + ahead, host.shape[0], storage::When::kLater);
    }
    for (std::int64_t b = 0; b < host.shape[0]; ++b) {
      const std::int64_t index = samples.At(microbatch, b);
      std::shared_ptr<const data::SampleTokens> sample;
      if (input.reads() && index >= of_batch.first + of_batch.count) {
        sample = EmptySample(plan.sequence);
      } else if (input.reads()) {
        ASSIGN_OR_RETURN(sample, batch->Read(index));
      }
      for (const Interval& interval : host.extent.dims[1]) {
        for (std::int64_t s = interval.start; s < interval.start + interval.length; ++s)
          out = input.Write(sample.get(), s, out);
      }
    }
    return absl::OkStatus();
  });
  if (source.masks_loss()) feed.label_factor = [batch] { return batch->LabelFactor(); };
  return feed;
}

}  // namespace engine::train
