#include "engine/data/source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/data/entropy.h"
#include "engine/data/missing_data.h"
#include "engine/data/random_tokens.h"
#include "engine/data/tokenizer.h"
#include "engine/recipe/split.h"

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
  if (dataset.is_remote()) return absl::OkStatus();  // CheckPiece, as it is read
  ASSIGN_OR_RETURN(const TokenScan scan, dataset.Scan());
  if (scan.min >= 0 && scan.max < vocab) return absl::OkStatus();
  const std::int64_t token = scan.min < 0 ? scan.min : scan.max;
  const std::int64_t position = scan.min < 0 ? scan.first_min : scan.first_max;
  return OutsideVocabulary(dataset, token, dataset.SequenceOfToken(position),
                           fmt::format("{} of the file", position), vocab);
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

absl::StatusOr<Source> Source::Open(const recipe::Recipe& recipe) {
  Source source;
  source.sequence_length_ = recipe.data.sequence_length;
  source.vocab_ = recipe.model.vocab;
  if (recipe.training.seed < 0 || recipe.training.seed > std::numeric_limits<std::uint32_t>::max()) {
    return AtKey(recipe, "training.seed",
                 InvalidArgument("{} is not from 0 to 2^32 - 1, the range of the sample order's generator",
                                 recipe.training.seed));
  }
  RETURN_IF_ERROR(source.SetEndOfDocument(recipe));
  if (recipe.data.is_random()) {
    source.random_seed_ = static_cast<std::uint64_t>(recipe.training.seed);
  } else {
    RETURN_IF_ERROR(source.OpenMembers(recipe));
  }
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
  masks_documents_ = recipe.data.documents == "masked";
  if (!masks_documents_ || recipe.data.is_random() || recipe.data.tokenizer.kind == "none")
    return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer(recipe.data.tokenizer);
  if (!tokenizer.ok()) {
    return AtKey(
        recipe, "data.tokenizer.kind", tokenizer.status(),
        "data.documents = \"masked\" asks it for its end-of-document token; with data.tokenizer.kind = "
        "\"none\" documents end where sequences of the data set do");
  }
  end_of_document_ = (*tokenizer)->end_of_document();
  if (*end_of_document_ < recipe.model.vocab) return absl::OkStatus();
  return AtKey(recipe, "data.tokenizer.kind",
               InvalidArgument("its end-of-document token is {}, and the model's vocabulary has {} tokens",
                               *end_of_document_, recipe.model.vocab),
               "the tokenizer that made the data, or model.vocab of its size");
}

absl::Status Source::OpenMembers(const recipe::Recipe& recipe) {
  const auto at_paths = [&](const absl::Status& status) { return AtKey(recipe, "data.paths", status); };
  if (recipe.data.paths.empty()) return at_paths(InvalidArgument("names no data set"));
  const std::size_t weights = recipe.data.weights.size();
  if (weights != 0 && weights != recipe.data.paths.size()) {
    return AtKey(recipe, "data.weights",
                 InvalidArgument("{} weights for {} data sets; give one each, or none", weights,
                                 recipe.data.paths.size()));
  }
  const absl::StatusOr<std::array<double, 3>> shares = recipe::ParseSplit(recipe.data.split);
  if (!shares.ok()) return AtKey(recipe, "data.split", shares.status());
  const std::array<double, 4> book_ends = SplitBookEnds(*shares);
  for (const std::string& path : recipe.data.paths) {
    absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(path);
    if (absl::IsNotFound(dataset.status())) {
      return AtKey(recipe, "data.paths", dataset.status(), HintForMissingData(recipe, path));
    }
    if (!dataset.ok()) return at_paths(dataset.status());
    if (absl::Status status = CheckTokens(*dataset, vocab_); !status.ok()) return at_paths(status);
    const std::array<SequenceRange, 3> ranges = SplitRanges(book_ends, dataset->sequences());
    has_remote_ = has_remote_ || dataset->is_remote();
    members_.push_back({*std::move(dataset), ranges});
  }
  return absl::OkStatus();
}

bool Source::HasOneSample(Split split) const {
  return std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    const SequenceRange range = member.ranges[static_cast<std::size_t>(split)];
    const std::int32_t* lengths = member.dataset.lengths().data();
    return std::accumulate(lengths + range.begin, lengths + range.end, std::int64_t{0}) > sequence_length_;
  });
}

absl::Status Source::BuildIndices(const recipe::Recipe& recipe, Split split,
                                  std::span<const std::optional<std::int64_t>> sizes) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const GptIndexOptions options = {.range = members_[i].ranges[static_cast<std::size_t>(split)],
                                     .sequence_length = sequence_length_,
                                     .num_samples = sizes[i],
                                     .seed = static_cast<std::uint32_t>(recipe.training.seed)};
    absl::StatusOr<GptIndex> index = BuildGptIndex(members_[i].dataset.lengths(), options);
    if (!index.ok()) {
      const std::string context =
          fmt::format("{} split (\"{}\") of {}", Name(split), recipe.data.split, recipe.data.paths[i]);
      return AtKey(recipe, "data.paths", WithContext(index.status(), context));
    }
    order(split).indices.push_back(*std::move(index));
  }
  return absl::OkStatus();
}

absl::Status Source::BuildOrder(const recipe::Recipe& recipe, Split split, std::int64_t size) {
  Order& order = this->order(split);
  order.size = size;
  const std::size_t count = members_.size();
  if (count == 1 && recipe.data.weights.empty()) {
    order.shares = {1.0};
    const std::optional<std::int64_t> exact = size;
    return BuildIndices(recipe, split, {&exact, 1});
  }
  std::vector<std::optional<std::int64_t>> built(count);  // nullopt: one epoch
  std::int64_t length = 0;
  if (!recipe.data.weights.empty()) {
    absl::StatusOr<std::vector<double>> shares = NormalizeWeights(recipe.data.weights);
    if (!shares.ok()) return AtKey(recipe, "data.weights", shares.status());
    order.shares = *std::move(shares);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t target = BlendTarget(size, order.shares[i]);
      built[i] = BlendBuiltSize(target);
      length += target;
    }
    RETURN_IF_ERROR(BuildIndices(recipe, split, built));
  } else {
    RETURN_IF_ERROR(BuildIndices(recipe, split, built));
    for (const GptIndex& index : order.indices) {
      order.shares.push_back(static_cast<double>(index.samples()));
      length += index.samples();
    }
    if (length < size) {
      return AtKey(recipe, "data.paths",
                   InvalidArgument("one epoch of the {} data sets has {} {} samples, the run needs {}; give "
                                   "data.weights, so that they are repeated",
                                   count, WithThousands(length), Name(split), WithThousands(size)));
    }
    length = size;
  }
  absl::StatusOr<BlendIndex> blend = BuildBlendIndex(order.shares, length);
  if (!blend.ok()) return AtKey(recipe, "data.weights", blend.status());
  order.blend = *std::move(blend);
  const double total = std::accumulate(order.shares.begin(), order.shares.end(), 0.0);
  for (double& share : order.shares) share /= total;
  return absl::OkStatus();
}

absl::Status Source::Sample(Split split, std::int64_t index, std::span<std::int32_t> out) const {
  const Order& order = this->order(split);
  if (index < 0 || index >= order.size) {
    return absl::OutOfRangeError(
        fmt::format("sample {} of the {} split, which has {}", index, Name(split), order.size));
  }
  if (static_cast<std::int64_t>(out.size()) != sequence_length_ + 1) {
    return InvalidArgument("a sample has {} tokens, not {}", sequence_length_ + 1, out.size());
  }
  if (random_seed_) {
    RandomSample(*random_seed_, split, index, vocab_, out);
    return absl::OkStatus();
  }
  const std::vector<Piece> pieces = PiecesOf(split, index, out.size());
  for (const Piece& piece : pieces)  // all that have to come come at once
    piece.dataset->Prefetch(piece.sequence, piece.offset, piece.tokens, storage::When::kNow);
  for (const Piece& piece : pieces) {
    const std::span<std::int32_t> tokens = out.first(piece.tokens);
    RETURN_IF_ERROR(piece.dataset->Read(piece.sequence, piece.offset, tokens));
    if (piece.dataset->is_remote()) RETURN_IF_ERROR(CheckPiece(piece, tokens));
    out = out.subspan(piece.tokens);
  }
  return absl::OkStatus();
}

absl::Status Source::CheckPiece(const Piece& piece, std::span<const std::int32_t> tokens) const {
  const auto wrong = std::find_if(tokens.begin(), tokens.end(),
                                  [this](std::int64_t token) { return token < 0 || token >= vocab_; });
  if (wrong == tokens.end()) return absl::OkStatus();
  return OutsideVocabulary(*piece.dataset, *wrong, piece.sequence,
                           fmt::format("{} of the sequence", piece.offset + (wrong - tokens.begin())),
                           vocab_);
}

void Source::Prefetch(Split split, std::int64_t index, storage::When when) const {
  if (!has_remote_ || index < 0 || index >= size(split)) return;
  for (const Piece& piece : PiecesOf(split, index, static_cast<std::size_t>(sequence_length_) + 1))
    piece.dataset->Prefetch(piece.sequence, piece.offset, piece.tokens, when);
}

std::vector<Source::Piece> Source::PiecesOf(Split split, std::int64_t index, std::size_t tokens) const {
  const Order& order = this->order(split);
  std::size_t member = 0;
  auto sample = static_cast<std::size_t>(index);
  if (order.blend.has_value()) {
    member = static_cast<std::size_t>(order.blend->datasets[sample]);
    sample = static_cast<std::size_t>(order.blend->samples[sample]);
  }
  const GptIndex& indices = order.indices[member];
  ENGINE_CHECK(sample < indices.shuffle.size(), "sample {} of {} in data set {}", sample,
               indices.shuffle.size(), member);
  const IndexedDataset& dataset = members_[member].dataset;
  SampleStart at = indices.starts[indices.shuffle[sample]];
  std::vector<Piece> pieces;
  while (tokens > 0) {
    const std::int64_t sequence = indices.documents[at.position];
    const std::int64_t available = dataset.lengths()[static_cast<std::size_t>(sequence)] - at.offset;
    const std::size_t taken = std::min(tokens, static_cast<std::size_t>(available));
    if (taken > 0) pieces.push_back({&dataset, sequence, at.offset, taken});
    tokens -= taken;
    at = {at.position + 1, 0};
  }
  return pieces;
}

std::vector<std::int32_t> Source::DocumentStarts(Split split, std::int64_t index,
                                                 std::span<const std::int32_t> sample) const {
  std::vector<std::int32_t> starts = {0};
  if (!masks_documents_ || random_seed_) return starts;
  const auto add = [&](std::size_t place) {  // the last token is a label alone
    const auto start = static_cast<std::int32_t>(place);
    if (start < sequence_length_ && start > starts.back()) starts.push_back(start);
  };
  std::size_t begin = 0;
  for (const Piece& piece : PiecesOf(split, index, sample.size())) {
    add(begin);
    for (std::size_t i = begin; end_of_document_ && i < begin + piece.tokens; ++i) {
      if (sample[i] == *end_of_document_) add(i + 1);
    }
    begin += piece.tokens;
  }
  return starts;
}

absl::StatusOr<double> Source::UnigramEntropy() const {
  if (random_seed_) return std::log(static_cast<double>(vocab_));
  const Order& train = order(Split::kTrain);
  std::vector<double> mixture(static_cast<std::size_t>(vocab_), 0.0);
  std::vector<std::int64_t> counts(mixture.size());
  for (std::size_t i = 0; i < train.indices.size(); ++i) {
    const SequenceRange range = members_[i].ranges[static_cast<std::size_t>(Split::kTrain)];
    std::fill(counts.begin(), counts.end(), 0);
    RETURN_IF_ERROR(members_[i].dataset.CountTokens(range.begin, range.end, counts));
    const double scale = train.shares[i] / static_cast<double>(train.indices[i].tokens_per_epoch);
    for (std::size_t token = 0; token < counts.size(); ++token) {
      mixture[token] += scale * static_cast<double>(counts[token]);
    }
  }
  return EntropyNats<double>(mixture);
}

Fingerprints Source::Fingerprint() const {
  Fingerprints fingerprints;
  for (const Member& member : members_) fingerprints.merge(member.dataset.Fingerprint());
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
  }
  if (masks_documents_) {
    text += random_seed_ ? "documents: each sample is one\n"
            : end_of_document_
                ? fmt::format("documents end where sequences do, and behind token {}\n", *end_of_document_)
                : "documents end where sequences do\n";
  }
  for (Split split : kSplits) {
    const Order& order = this->order(split);
    text += fmt::format("{}: {} samples of {} + 1 tokens", Name(split), WithThousands(order.size),
                        sequence_length_);
    for (std::size_t i = 0; i < order.indices.size(); ++i) {
      const GptIndex& index = order.indices[i];
      const std::string share =
          order.blend.has_value() ? fmt::format("{:.1f} % ", 100 * order.shares[i]) : "";
      text += fmt::format("{} {}from {} {} of {} tokens", i == 0 ? "," : ";", share, index.epochs,
                          index.epochs == 1 ? "epoch" : "epochs", WithThousands(index.tokens_per_epoch));
    }
    text += '\n';
  }
  return text;
}

}  // namespace engine::data
