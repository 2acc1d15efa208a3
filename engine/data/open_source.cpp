// Opening the data of a recipe: its sets, their masks, and the order of their samples.
#include "engine/data/source.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>

#include "engine/base/core_limit.h"
#include "engine/base/parallel.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/data/indexed_format.h"
#include "engine/data/missing_data.h"
#include "engine/data/tokenizer.h"
#include "engine/recipe/split.h"
#include "engine/storage/storage.h"

namespace engine::data {
namespace {

// The same failure, at the place of the recipe where `key` was given.
absl::Status AtKey(const recipe::Recipe& recipe, const std::string& key, const absl::Status& status,
                   std::string hint = "") {
  Diagnostic diagnostic;
  diagnostic.span.file = recipe.path;
  if (const auto found = recipe.provenance.find(key); found != recipe.provenance.end()) {
    diagnostic.span = found->second.span;
    diagnostic.source_line = found->second.source_line;
  }
  diagnostic.message = key + ": " + Message(status);
  diagnostic.hint = std::move(hint);
  std::string text = Format(diagnostic);
  while (text.ends_with('\n')) text.pop_back();
  return absl::Status(status.code(), text);
}

absl::Status OutsideVocabulary(const IndexedDataset& dataset, std::int64_t token, std::int64_t sequence,
                               const std::string& position, std::int64_t vocab) {
  return InvalidArgument(
      "{}.bin: token {} (sequence {}, position {}) is outside the model's vocabulary, 0 to {}; raise "
      "model.vocab or build "
      "the data set with the recipe's tokenizer",
      dataset.prefix(), token, sequence, position, vocab - 1);
}

absl::Status CheckTokens(const IndexedDataset& dataset, std::int64_t vocab) {
  if (dataset.is_remote()) return absl::OkStatus();  // AppendPiece, as it is read
  ASSIGN_OR_RETURN(const TokenScan scan, dataset.Scan());
  if (scan.min >= 0 && scan.max < vocab) return absl::OkStatus();
  const std::int64_t token = scan.min < 0 ? scan.min : scan.max;
  const std::int64_t position = scan.min < 0 ? scan.first_min : scan.first_max;
  return OutsideVocabulary(dataset, token, dataset.SequenceOfToken(position),
                           fmt::format("{} of the file", position), vocab);
}

// The data sets that a split draws from, and the table of the recipe that names them.
struct SplitSets {
  const recipe::DataSets& sets;
  std::string table;
  bool whole;  // no other split has a part of them
  std::span<const std::int64_t> epochs;

  std::string key(std::string_view name) const { return fmt::format("{}.{}", table, name); }
  // How often the split goes through the data set of that number, where the recipe says it.
  std::optional<std::int64_t> EpochsOf(std::size_t set) const {
    if (epochs.empty()) return std::nullopt;
    return epochs[epochs.size() == 1 ? 0 : set];
  }
};

SplitSets SetsOf(const recipe::Data& data, Split split) {
  if (!data.per_split()) {
    return {data, "data", false,
            split == Split::kTrain ? std::span<const std::int64_t>(data.epochs)
                                   : std::span<const std::int64_t>()};
  }
  const recipe::DataSets& sets = split == Split::kTrain   ? data.train
                                 : split == Split::kValid ? data.validation
                                                          : data.test;
  return {sets, fmt::format("data.{}", Name(split)), true, sets.epochs};
}

struct Sizes {
  std::array<std::int64_t, 3> of_split = {};
};

absl::StatusOr<Sizes> RequestedSizes(const recipe::Recipe& recipe) {
  const std::int64_t batch = recipe.training.global_batch;
  const std::int64_t iterations = recipe.iterations();
  std::int64_t evaluations = 0;
  if (recipe.evaluation.interval > 0) evaluations = iterations / recipe.evaluation.interval + 1;
  Sizes sizes;
  auto& [train, valid, test] = sizes.of_split;
  if (__builtin_mul_overflow(iterations, batch, &train) ||  // of a batch that grows: more than it takes
      __builtin_mul_overflow(evaluations > 0 ? recipe.evaluation.iterations : 0, batch, &test) ||
      __builtin_mul_overflow(evaluations, test, &valid)) {
    return InvalidArgument("{} iterations of {} samples are more than 63 bits count", iterations, batch);
  }
  train = recipe.samples();
  return sizes;
}

}  // namespace

absl::StatusOr<Source> Source::Open(const recipe::Recipe& recipe, const std::string& index_folder) {
  Source source;
  source.sequence_length_ = recipe.data.sequence_length;
  source.vocab_ = recipe.model.vocab;
  source.index_folder_ = recipe.data.index_cache.empty() ? index_folder : recipe.data.index_cache;
  if (recipe.training.seed < 0 || recipe.training.seed > std::numeric_limits<std::uint32_t>::max()) {
    return AtKey(recipe, "training.seed",
                 InvalidArgument("{} is not from 0 to 2^32 - 1, the range of the sample order's generator",
                                 recipe.training.seed));
  }
  RETURN_IF_ERROR(source.SetEndOfDocument(recipe));
  if (recipe.data.is_random()) {
    source.random_seed_ = static_cast<std::uint64_t>(recipe.training.seed);
  } else {
    source.packs_ = recipe.data.packs();
    source.drops_long_ = recipe.data.long_documents == "drop";
    if (recipe.data.fim.rate > 0) {
      std::string key;
      absl::StatusOr<std::unique_ptr<MiddleFiller>> filler = MiddleFiller::Make(recipe, &key);
      if (!filler.ok()) return AtKey(recipe, key, filler.status());
      source.filler_ = *std::move(filler);
    }
    for (Split split : kSplits) RETURN_IF_ERROR(source.OpenMembers(recipe, split));
    RETURN_IF_ERROR(source.CheckVocabulary(recipe));
  }
  source.masks_loss_ = source.masks_end_of_document_ || source.packs_ || source.filler_ != nullptr ||
                       std::any_of(source.members_.begin(), source.members_.end(),
                                   [](const Member& m) { return m.mask.has_value(); });
  absl::StatusOr<Sizes> sizes = RequestedSizes(recipe);
  if (!sizes.ok()) return AtKey(recipe, "training.iterations", sizes.status());
  for (Split split : kSplits) {
    const std::int64_t size = sizes->of_split[static_cast<std::size_t>(split)];
    if (size == 0 || (split == Split::kTest && !source.HasOneSample(split))) continue;
    if (source.random_seed_) {
      source.order(split).size = size;
    } else {
      RETURN_IF_ERROR(source.BuildOrder(recipe, split, size));
    }
  }
  return source;
}

absl::Status Source::SetEndOfDocument(const recipe::Recipe& recipe) {
  const recipe::Data& data = recipe.data;
  masks_documents_ = data.documents == "masked";
  masks_end_of_document_ = data.mask_end_of_document_loss && !data.is_random();
  const char* asks = masks_documents_         ? "documents = \"masked\""
                     : masks_end_of_document_ ? "mask_end_of_document_loss"
                     : data.fim.rate > 0      ? "fim.rate"
                                              : nullptr;
  if (asks == nullptr || data.is_random() || data.tokenizer.kind == "none") return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer(data.tokenizer);
  if (!tokenizer.ok()) {
    return AtKey(recipe, "data.tokenizer.kind", tokenizer.status(),
                 fmt::format("data.{} asks it for its end-of-document token{}", asks,
                             masks_documents_ ? "; with data.tokenizer.kind = \"none\" documents end where "
                                                "sequences of the data set do"
                                              : ""));
  }
  end_of_document_ = (*tokenizer)->end_of_document();
  if (*end_of_document_ < recipe.model.vocab) return absl::OkStatus();
  return AtKey(recipe, "data.tokenizer.kind",
               InvalidArgument("its end-of-document token is {}, and the model's vocabulary has {} tokens",
                               *end_of_document_, recipe.model.vocab),
               "the tokenizer that made the data, or model.vocab of its size");
}

absl::StatusOr<std::size_t> Source::OpenMember(const recipe::Recipe& recipe, const std::string& key,
                                               const std::string& prefix) {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (members_[m].dataset.prefix() == prefix) return m;
  }
  absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(prefix);
  if (absl::IsNotFound(dataset.status())) {
    return AtKey(recipe, key, dataset.status(), HintForMissingData(recipe, prefix));
  }
  if (!dataset.ok()) return AtKey(recipe, key, dataset.status());
  Member member = {.dataset = *std::move(dataset), .mask = std::nullopt, .ranges = {}};
  has_remote_ = has_remote_ || member.dataset.is_remote();
  RETURN_IF_ERROR(OpenMask(recipe, key, &member));
  members_.push_back(std::move(member));
  return members_.size() - 1;
}

absl::Status Source::OpenMask(const recipe::Recipe& recipe, const std::string& key, Member* member) const {
  const std::string prefix = LossMaskPrefix(member->dataset.prefix());
  std::error_code error;
  if (member->dataset.is_remote()) {
    // A bucket that may not be listed answers that what is not there may not be read.
    const absl::Status found = storage::Open(IdxPath(prefix)).status();
    member->mask_is_forbidden = absl::IsPermissionDenied(found);
    if (member->mask_is_forbidden || absl::IsNotFound(found)) return absl::OkStatus();
  } else if (!std::filesystem::exists(IdxPath(prefix), error) &&
             !std::filesystem::exists(BinPath(prefix), error)) {
    return absl::OkStatus();
  }
  const auto at_key = [&](const absl::Status& status, std::string hint = "") {
    return AtKey(recipe, key, status, std::move(hint));
  };
  absl::StatusOr<IndexedDataset> mask = IndexedDataset::Open(prefix);
  if (!mask.ok()) return at_key(WithContext(mask.status(), "the mask of the loss"));
  const auto lengths = member->dataset.lengths();
  if (mask->type() != TokenType::kU8) {
    return at_key(
        InvalidArgument("{}: a mask of the loss is of uint8, not {}", IdxPath(prefix), Name(mask->type())));
  }
  const auto [ours, theirs] =
      std::mismatch(lengths.begin(), lengths.end(), mask->lengths().begin(), mask->lengths().end());
  if (lengths.size() != mask->lengths().size()) {
    return at_key(InvalidArgument("{} has {} sequences, and {} has {}", IdxPath(prefix),
                                  mask->lengths().size(), IdxPath(member->dataset.prefix()), lengths.size()),
                  "both of one `engine data build`");
  }
  if (ours != lengths.end()) {
    return at_key(InvalidArgument("{}: sequence {} has {} numbers, and its {} has {} tokens", IdxPath(prefix),
                                  ours - lengths.begin(), *theirs, IdxPath(member->dataset.prefix()), *ours),
                  "both of one `engine data build`");
  }
  if (recipe.data.fim.rate > 0) {
    return AtKey(
        recipe, "data.fim.rate",
        InvalidArgument("rearranges documents, and {} says which of their tokens count", IdxPath(prefix)),
        "data.fim.rate = 0, or data sets without masks");
  }
  member->mask = *std::move(mask);
  return absl::OkStatus();
}

// Larger data sets would take minutes; Read checks what it reads.
absl::Status Source::CheckVocabulary(const recipe::Recipe& recipe) const {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
  std::int64_t bytes = 0;
  for (const Member& member : members_) bytes += member.dataset.bin_bytes();
  if (bytes > kMostBytes) return absl::OkStatus();
  for (Split split : kSplits) {
    for (const std::size_t m : order(split).members) {
      if (absl::Status status = CheckTokens(members_[m].dataset, vocab_); !status.ok())
        return AtKey(recipe, SetsOf(recipe.data, split).key("paths"), status);
    }
    if (!recipe.data.per_split()) break;  // all splits have the same ones
  }
  return absl::OkStatus();
}

absl::Status Source::OpenMembers(const recipe::Recipe& recipe, Split split) {
  const SplitSets of = SetsOf(recipe.data, split);
  const std::vector<std::string>& paths = of.sets.paths;
  const bool needed =
      !of.whole || split == Split::kTrain || (split == Split::kValid && recipe.evaluation.interval > 0);
  if (paths.empty()) {
    return needed ? AtKey(recipe, of.key("paths"), InvalidArgument("names no data set")) : absl::OkStatus();
  }
  for (const auto& [name, count] : {std::pair("weights", of.sets.weights.size()),
                                    std::pair("epochs", of.epochs.size() == 1 ? 0 : of.epochs.size())}) {
    if (count == 0 || count == paths.size()) continue;
    return AtKey(
        recipe, of.key(name),
        InvalidArgument("{} {} for {} data sets; give one each, or none", count, name, paths.size()));
  }
  if (!of.sets.weights.empty() && !of.epochs.empty()) {
    return AtKey(recipe, of.key("epochs"), InvalidArgument("stands beside weights; give one of the two"));
  }
  std::array<double, 4> book_ends = {0, 1, 1, 1};
  if (!of.whole) {
    const absl::StatusOr<std::array<double, 3>> shares = recipe::ParseSplit(recipe.data.split);
    if (!shares.ok()) return AtKey(recipe, "data.split", shares.status());
    book_ends = SplitBookEnds(*shares);
  }
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const std::size_t m, OpenMember(recipe, of.key("paths"), path));
    const std::array<SequenceRange, 3> ranges = SplitRanges(book_ends, members_[m].dataset.sequences());
    const auto s = static_cast<std::size_t>(split);
    members_[m].ranges[s] = ranges[of.whole ? 0 : s];
    order(split).members.push_back(m);
  }
  return absl::OkStatus();
}

bool Source::HasOneSample(Split split) const {
  const std::vector<std::size_t>& members = order(split).members;
  return random_seed_ || (!members.empty() && std::all_of(members.begin(), members.end(), [&](std::size_t m) {
           const SequenceRange range = members_[m].ranges[static_cast<std::size_t>(split)];
           const std::int32_t* lengths = members_[m].dataset.lengths().data();
           const std::int64_t longest =
               drops_long_ ? sequence_length_ + 1 : std::numeric_limits<std::int64_t>::max();
           if (packs_)
             return std::any_of(lengths + range.begin, lengths + range.end,
                                [&](std::int64_t n) { return n > 1 && n <= longest; });
           return std::accumulate(lengths + range.begin, lengths + range.end, std::int64_t{0}) >
                  sequence_length_;
         }));
}

absl::Status Source::BuildIndices(const recipe::Recipe& recipe, Split split,
                                  std::span<const Extent> extents) {
  const SplitSets of = SetsOf(recipe.data, split);
  Order& order = this->order(split);
  const std::size_t count = order.members.size();
  std::vector<absl::StatusOr<SampleIndex>> built(count);
  std::vector<std::string> notes(count);
  ParallelPieces(CoresOfProcess(), count, 1, [&](std::size_t i, std::size_t) {
    const Member& member = members_[order.members[i]];
    const SampleIndexOptions options = {.range = member.ranges[static_cast<std::size_t>(split)],
                                        .sequence_length = sequence_length_,
                                        .packs = packs_,
                                        .drops_long = drops_long_,
                                        .num_samples = extents[i].samples,
                                        .epochs = extents[i].epochs,
                                        .seed = static_cast<std::uint32_t>(recipe.training.seed)};
    built[i] = OpenSampleIndex(index_folder_, member.dataset.lengths(), options, &notes[i]);
  });
  for (std::size_t i = 0; i < count; ++i) {
    if (!built[i].ok()) {
      const std::string part =
          of.whole ? "data set" : fmt::format("{} split (\"{}\") of", Name(split), recipe.data.split);
      const std::string& prefix = members_[order.members[i]].dataset.prefix();
      return AtKey(recipe, of.key("paths"),
                   WithContext(built[i].status(), fmt::format("{} {}", part, prefix)));
    }
    order.indices.push_back(*std::move(built[i]));
    if (!notes[i].empty()) index_note_ = notes[i];
  }
  return absl::OkStatus();
}

absl::Status Source::BuildOrder(const recipe::Recipe& recipe, Split split, std::int64_t size) {
  const SplitSets of = SetsOf(recipe.data, split);
  Order& order = this->order(split);
  order.size = size;
  const std::size_t count = order.members.size();
  std::vector<Extent> extents(count);
  std::int64_t length = 0;
  if (!of.sets.weights.empty()) {
    absl::StatusOr<std::vector<double>> shares = NormalizeWeights(of.sets.weights);
    if (!shares.ok()) return AtKey(recipe, of.key("weights"), shares.status());
    order.shares = *std::move(shares);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t target = BlendTarget(size, order.shares[i]);
      extents[i].samples = BlendBuiltSize(target);
      length += target;
    }
    RETURN_IF_ERROR(BuildIndices(recipe, split, extents));
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      const std::optional<std::int64_t> epochs = of.EpochsOf(i);
      if (epochs) extents[i].epochs = *epochs;
      if (!epochs && count == 1) extents[i].samples = size;
    }
    RETURN_IF_ERROR(BuildIndices(recipe, split, extents));
    for (const SampleIndex& index : order.indices) {
      order.shares.push_back(static_cast<double>(index.samples()));
      length += index.samples();
    }
    if (length < size) {
      const std::string have = of.epochs.empty() ? "one epoch" : "so many epochs";
      return AtKey(
          recipe, of.key(of.epochs.empty() ? "paths" : "epochs"),
          InvalidArgument("{} of the {} has {} {} samples, the run needs {}; give {}", have,
                          count == 1 ? "data set" : fmt::format("{} data sets", count), WithThousands(length),
                          Name(split), WithThousands(size),
                          of.epochs.empty() ? of.key("weights") + ", so that they are repeated"
                                            : "more epochs, or training.iterations that they suffice for"));
    }
    length = size;
  }
  if (count == 1 && of.sets.weights.empty()) {
    order.shares = {1.0};
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Blend>> blend = Blend::Make(order.shares, length);
  if (!blend.ok()) return AtKey(recipe, of.key("weights"), blend.status());
  order.blend = *std::move(blend);
  const double total = std::accumulate(order.shares.begin(), order.shares.end(), 0.0);
  for (double& share : order.shares) share /= total;
  return absl::OkStatus();
}

}  // namespace engine::data
