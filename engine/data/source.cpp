#include "engine/data/source.h"

#include <algorithm>
#include <cmath>

#include "engine/base/core_limit.h"
#include "engine/base/parallel.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/data/entropy.h"
#include "engine/data/indexed_format.h"
#include "engine/data/random_tokens.h"
#include "engine/storage/storage.h"

namespace engine::data {

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
    ParallelPieces(CoresOfProcess(), of_sample.size(), grain, [&](std::size_t from, std::size_t to) {
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
  ParallelPieces(CoresOfProcess(), members_.size(), 1, [&](std::size_t m, std::size_t) {
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
