#include "engine/data/source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>

#include "engine/base/parallel.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/data/entropy.h"
#include "engine/data/indexed_format.h"
#include "engine/data/missing_data.h"
#include "engine/data/random_tokens.h"
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

std::int32_t SampleTokens::Label(std::int64_t place, std::int64_t ahead) const {
  const std::int64_t at = place + ahead;
  if (at >= static_cast<std::int64_t>(tokens.size())) return -1;
  if (!targets.empty() && targets[static_cast<std::size_t>(at)] == 0) return -1;
  if (!pieces.empty()) {
    const auto next = std::upper_bound(pieces.begin(), pieces.end(), static_cast<std::int32_t>(place));
    if (next != pieces.end() && at >= *next) return -1;
  }
  return tokens[static_cast<std::size_t>(at)];
}

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
  ParallelPieces(HardwareThreads(), count, 1, [&](std::size_t i, std::size_t) {
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

std::pair<std::size_t, std::int64_t> Source::Locate(const Order& order, std::int64_t index) const {
  if (order.blend == nullptr) return {0, index};
  const Blend::Place place = order.blend->At(index);
  return {static_cast<std::size_t>(place.dataset), place.sample};
}

absl::Status Source::AppendPiece(const Member& member, const PackedPiece& piece, SampleTokens* sample) const {
  const auto begin = sample->tokens.size();
  const auto count = static_cast<std::size_t>(piece.tokens);
  sample->tokens.resize(begin + count);
  const std::span<std::int32_t> tokens = std::span(sample->tokens).subspan(begin);
  RETURN_IF_ERROR(member.dataset.Read(piece.sequence, piece.offset, tokens));
  const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
  if (*least < 0 || *most >= vocab_) {
    const auto wrong = *least < 0 ? least : most;
    return DataLoss(
        "{}: token {} (sequence {}, place {} in it) is outside the model's vocabulary, 0 to {}; the recipe's "
        "tokenizer has not made this data set",
        BinPath(member.dataset.prefix()), *wrong, piece.sequence, piece.offset + (wrong - tokens.begin()),
        vocab_ - 1);
  }
  if (!masks_loss_) return absl::OkStatus();
  sample->targets.resize(begin + count, 1);
  if (!member.mask) return absl::OkStatus();
  std::vector<std::int32_t> counts(count);
  RETURN_IF_ERROR(member.mask->Read(piece.sequence, piece.offset, counts));
  for (std::size_t i = 0; i < count; ++i) {
    if (counts[i] != 0 && counts[i] != 1) {
      return DataLoss("{}: number {} (sequence {}, place {} in it) of a mask of the loss is neither 0 nor 1",
                      BinPath(member.mask->prefix()), counts[i], piece.sequence,
                      piece.offset + static_cast<std::int64_t>(i));
    }
    sample->targets[begin + i] = static_cast<std::uint8_t>(counts[i]);
  }
  return absl::OkStatus();
}

// `starts` and `pieces` are of the sample before, and then of what became of it.
void Source::FillInMiddle(Split split, std::int64_t index, SampleTokens* sample) const {
  SampleTokens filled;
  filled.starts.clear();
  std::vector<std::int32_t> document;
  auto piece = sample->pieces.begin();
  for (std::size_t d = 0; d < sample->starts.size(); ++d) {
    const auto begin = sample->tokens.begin() + sample->starts[d];
    auto end =
        d + 1 < sample->starts.size() ? sample->tokens.begin() + sample->starts[d + 1] : sample->tokens.end();
    if (piece != sample->pieces.end() && *piece == sample->starts[d]) {
      filled.pieces.push_back(static_cast<std::int32_t>(filled.tokens.size()));
      ++piece;
    }
    filled.starts.push_back(static_cast<std::int32_t>(filled.tokens.size()));
    const bool ended = end != begin && end_of_document_ && *(end - 1) == *end_of_document_;
    document.assign(begin, ended ? end - 1 : end);
    filler_->Rearrange(split, index, static_cast<std::int64_t>(d), &document);
    filled.tokens.insert(filled.tokens.end(), document.begin(), document.end());
    if (ended) filled.tokens.push_back(*end_of_document_);
  }
  filled.targets.assign(filled.tokens.size(), 1);
  *sample = std::move(filled);
}

void Source::MaskTargets(SampleTokens* sample) const {
  if (!masks_loss_) return;
  for (std::size_t t = 1; masks_end_of_document_ && t < sample->tokens.size(); ++t) {
    if (sample->tokens[t - 1] == *end_of_document_) sample->targets[t] = 0;
  }
  for (const std::int32_t piece : sample->pieces) sample->targets[static_cast<std::size_t>(piece)] = 0;
}

absl::StatusOr<SampleTokens> Source::Read(Split split, std::int64_t index) const {
  const Order& order = this->order(split);
  if (index < 0 || index >= order.size) {
    return absl::OutOfRangeError(
        fmt::format("sample {} of the {} split, which has {}", index, Name(split), order.size));
  }
  SampleTokens sample;
  const auto room = static_cast<std::size_t>(sequence_length_) + 1;
  if (random_seed_) {
    sample.tokens.resize(room);
    RandomSample(*random_seed_, split, index, vocab_, sample.tokens);
    return sample;
  }
  const auto [set, number] = Locate(order, index);
  const Member& member = members_[order.members[set]];
  std::vector<PackedPiece> pieces;
  order.indices[set].AppendPieces(number, member.dataset.lengths(), &pieces);
  sample.tokens.reserve(room);
  const auto start = [&](std::size_t place) {
    if (static_cast<std::int32_t>(place) > sample.starts.back())
      sample.starts.push_back(static_cast<std::int32_t>(place));
  };
  Prefetch(split, index, storage::When::kNow);  // all that has to come comes at once
  for (const PackedPiece& piece : pieces) {
    const std::size_t begin = sample.tokens.size();
    start(begin);
    if (packs_) sample.pieces.push_back(static_cast<std::int32_t>(begin));
    RETURN_IF_ERROR(AppendPiece(member, piece, &sample));
    if (!end_of_document_ || (!masks_documents_ && filler_ == nullptr)) continue;
    for (std::size_t i = begin; i + 1 < sample.tokens.size(); ++i) {
      if (sample.tokens[i] == *end_of_document_) start(i + 1);
    }
  }
  if (filler_ != nullptr) FillInMiddle(split, index, &sample);
  MaskTargets(&sample);
  const auto beyond = [&](std::int32_t place, std::int64_t end) { return place >= end; };
  if (sample.tokens.size() < room) start(sample.tokens.size());
  sample.tokens.resize(room, 0);
  if (masks_loss_) sample.targets.resize(room, 0);
  std::erase_if(sample.starts, [&](std::int32_t place) { return beyond(place, sequence_length_); });
  std::erase_if(sample.pieces, [&](std::int32_t place) { return beyond(place, sequence_length_ + 1); });
  if (!masks_documents_) sample.starts = {0};
  return sample;
}

absl::Status Source::Sample(Split split, std::int64_t index, std::span<std::int32_t> out) const {
  if (static_cast<std::int64_t>(out.size()) != sequence_length_ + 1) {
    return InvalidArgument("a sample has {} tokens, not {}", sequence_length_ + 1, out.size());
  }
  ASSIGN_OR_RETURN(const SampleTokens sample, Read(split, index));
  std::copy(sample.tokens.begin(), sample.tokens.end(), out.begin());
  return absl::OkStatus();
}

void Source::Prefetch(Split split, std::int64_t index, storage::When when) const {
  if (!has_remote_ || index < 0 || index >= size(split)) return;
  const Order& order = this->order(split);
  const auto [set, number] = Locate(order, index);
  const Member& member = members_[order.members[set]];
  std::vector<PackedPiece> pieces;
  order.indices[set].AppendPieces(number, member.dataset.lengths(), &pieces);
  for (const PackedPiece& piece : pieces) {
    const auto tokens = static_cast<std::size_t>(piece.tokens);
    member.dataset.Prefetch(piece.sequence, piece.offset, tokens, when);
    if (member.mask) member.mask->Prefetch(piece.sequence, piece.offset, tokens, when);
  }
}

std::optional<std::int64_t> Source::CountedByIndex(Split split, std::int64_t index) const {
  if (masks_end_of_document_ || filler_ != nullptr || index >= size(split)) return std::nullopt;
  const Order& order = this->order(split);
  const auto [set, number] = Locate(order, index);
  const Member& member = members_[order.members[set]];
  if (member.mask) return std::nullopt;
  if (!packs_) return sequence_length_;
  std::vector<PackedPiece> pieces;
  order.indices[set].AppendPieces(number, member.dataset.lengths(), &pieces);
  std::int64_t counted = 0;
  for (const PackedPiece& piece : pieces) counted += piece.tokens - 1;
  return counted;
}

absl::StatusOr<std::int64_t> Source::CountedOfSample(Split split, std::int64_t index) const {
  if (const std::optional<std::int64_t> labels = CountedByIndex(split, index)) return *labels;
  ASSIGN_OR_RETURN(const SampleTokens sample, Read(split, index));
  return std::count(sample.targets.begin() + 1, sample.targets.end(), 1);
}

absl::StatusOr<std::int64_t> Source::CountedLabels(Split split, std::int64_t first,
                                                   std::int64_t count) const {
  if (!masks_loss_) return count * sequence_length_;
  // Samples are read in blocks of so many. Of a server's, a block is asked for while the one before it is read: enough for all requests
  // that may be under way, and less than the cache of blocks holds.
  constexpr std::int64_t kBytesAhead = std::int64_t{32} << 20;
  const std::int64_t block = std::clamp<std::int64_t>(kBytesAhead / (sequence_length_ * 5), 1, 256);
  // Fewer tokens take less time than to start a thread for them.
  constexpr std::int64_t kTokensOfThread = std::int64_t{1} << 17;
  const auto grain = static_cast<std::size_t>(std::max<std::int64_t>(1, kTokensOfThread / sequence_length_));
  const std::int64_t last = first + count;
  const auto ask = [&](std::int64_t begin) {
    for (std::int64_t i = begin; has_remote_ && i < std::min(begin + block, last); ++i) {
      if (!CountedByIndex(split, i)) Prefetch(split, i, storage::When::kNow);
    }
  };
  ask(first);
  std::int64_t counted = 0;
  for (std::int64_t begin = first; begin < last; begin += block) {
    ask(begin + block);
    std::vector<absl::StatusOr<std::int64_t>> of_sample(
        static_cast<std::size_t>(std::min(block, last - begin)), 0);
    ParallelPieces(HardwareThreads(), of_sample.size(), grain, [&](std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to; ++i)
        of_sample[i] = CountedOfSample(split, begin + static_cast<std::int64_t>(i));
    });
    for (const absl::StatusOr<std::int64_t>& labels : of_sample) {
      RETURN_IF_ERROR(labels.status());
      counted += *labels;
    }
  }
  return counted;
}

absl::StatusOr<double> Source::UnigramEntropy() const {
  if (random_seed_) return std::log(static_cast<double>(vocab_));
  const Order& train = order(Split::kTrain);
  std::vector<double> mixture(static_cast<std::size_t>(vocab_), 0.0);
  std::vector<std::int64_t> counts(mixture.size());
  for (std::size_t i = 0; i < train.indices.size(); ++i) {
    const Member& member = members_[train.members[i]];
    const SequenceRange range = member.ranges[static_cast<std::size_t>(Split::kTrain)];
    std::fill(counts.begin(), counts.end(), 0);
    RETURN_IF_ERROR(member.dataset.CountTokens(range.begin, range.end, counts));
    const double scale = train.shares[i] / static_cast<double>(train.indices[i].tokens_per_epoch);
    for (std::size_t token = 0; token < counts.size(); ++token) {
      mixture[token] += scale * static_cast<double>(counts[token]);
    }
  }
  return EntropyNats<double>(mixture);
}

Fingerprints Source::Fingerprint() const {
  // Of up to 16 data sets 16 MiB each; of more some 64 MiB together, so that a thousand take seconds.
  const std::size_t blocks = members_.size() <= 16 ? 256 : std::max<std::size_t>(2, 1024 / members_.size());
  std::vector<Fingerprints> of_member(members_.size());
  ParallelPieces(HardwareThreads(), members_.size(), 1, [&](std::size_t m, std::size_t) {
    of_member[m] = members_[m].dataset.Fingerprint(blocks);
    if (members_[m].mask) of_member[m].merge(members_[m].mask->Fingerprint(blocks));
  });
  Fingerprints fingerprints;
  for (Fingerprints& of : of_member) fingerprints.merge(of);
  if (end_of_document_) fingerprints["end-of-document token"] = fmt::format("{}", *end_of_document_);
  return fingerprints;
}

std::string Source::Summary() const {
  std::string text;
  if (random_seed_) {
    text += fmt::format("random tokens of [0, {}): no data set; the loss stays at ln {} = {:.4f}\n", vocab_,
                        vocab_, std::log(static_cast<double>(vocab_)));
  }
  for (const Member& member : members_) {
    const IndexedDataset& dataset = member.dataset;
    text += fmt::format("data set {}: {} tokens ({}) in {} sequences\n", dataset.prefix(),
                        WithThousands(dataset.tokens()), Name(dataset.type()),
                        WithThousands(dataset.sequences()));
    if (member.mask) text += fmt::format("  {} says which count in the loss\n", member.mask->prefix());
    if (member.mask_is_forbidden) {
      text += fmt::format("  {} may not be read, which is taken for no mask of the loss\n",
                          IdxPath(LossMaskPrefix(dataset.prefix())));
    }
  }
  if (!index_note_.empty()) text += index_note_ + "\n";
  if (masks_documents_) {
    text += random_seed_ ? "documents: each sample is one\n"
            : end_of_document_
                ? fmt::format("documents end where sequences do, and behind token {}\n", *end_of_document_)
                : "documents end where sequences do\n";
  }
  if (masks_end_of_document_)
    text += fmt::format("what is predicted behind token {} does not count in the loss\n", *end_of_document_);
  for (Split split : kSplits) {
    const Order& order = this->order(split);
    text += fmt::format("{}: {} samples of {} + 1 tokens", Name(split), WithThousands(order.size),
                        sequence_length_);
    for (std::size_t i = 0; i < order.indices.size(); ++i) {
      const SampleIndex& index = order.indices[i];
      const std::string share = order.blend != nullptr ? fmt::format("{:.1f} % ", 100 * order.shares[i]) : "";
      text += fmt::format("{} {}from {} {} of {} tokens", i == 0 ? "," : ";", share, index.epochs,
                          index.epochs == 1 ? "epoch" : "epochs", WithThousands(index.tokens_per_epoch));
      if (!index.packed) continue;
      const auto packs = static_cast<std::int64_t>(index.packs.size()) - 1;
      text += fmt::format(", {} pieces of documents in {} samples ({:.1f} % padding)",
                          WithThousands(index.facts.pieces), WithThousands(packs),
                          100 - 100.0 * static_cast<double>(index.facts.tokens) /
                                    static_cast<double>(packs * (sequence_length_ + 1)));
      if (index.facts.cut > 0) text += fmt::format(", {} documents cut", WithThousands(index.facts.cut));
      if (index.facts.dropped > 0)
        text += fmt::format(", {} documents left out", WithThousands(index.facts.dropped));
    }
    text += '\n';
  }
  return text;
}

}  // namespace engine::data
