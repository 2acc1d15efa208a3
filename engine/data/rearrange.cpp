#include "engine/data/rearrange.h"

#include <memory>
#include <utility>

#include "engine/base/status.h"
#include "engine/data/indexed_dataset.h"

namespace engine::data {
namespace {

constexpr std::size_t kCopiedBytes = std::size_t{4} << 20;  // at a time

// Documents [begin, end), as they are.
absl::Status Copy(const IndexedDataset& from, std::int64_t begin, std::int64_t end,
                  IndexedDatasetWriter* writer) {
  EncodedDocuments copied;
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::int64_t document = begin; document < end; ++document) {
    const std::int64_t first = from.first_sequence(document);
    sequences.resize(static_cast<std::size_t>(from.first_sequence(document + 1) - first));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const auto sequence = first + static_cast<std::int64_t>(i);
      sequences[i].resize(static_cast<std::size_t>(from.lengths()[static_cast<std::size_t>(sequence)]));
      RETURN_IF_ERROR(from.Read(sequence, 0, sequences[i]));
    }
    RETURN_IF_ERROR(EncodeDocument(from.type(), sequences, &copied));
    if (copied.tokens.size() < kCopiedBytes && document + 1 < end) continue;
    RETURN_IF_ERROR(writer->Add(copied));
    copied = {};
  }
  return absl::OkStatus();
}

absl::StatusOr<MadeDataset> Finish(const std::string& prefix, IndexedDatasetWriter* writer) {
  RETURN_IF_ERROR(writer->Finish());
  return MadeDataset{prefix, writer->documents(), writer->sequences(), writer->tokens()};
}

}  // namespace

absl::StatusOr<MadeDataset> MergeDatasets(std::span<const std::string> prefixes, const std::string& output) {
  std::vector<IndexedDataset> datasets;
  for (const std::string& prefix : prefixes) {
    ASSIGN_OR_RETURN(IndexedDataset dataset, IndexedDataset::Open(prefix));
    if (prefix == output)
      return InvalidArgument("{} cannot be merged into itself: give another name", prefix);
    datasets.push_back(std::move(dataset));
    const TokenType type = datasets.front().type();
    if (datasets.back().type() == type) continue;
    return InvalidArgument("{} holds tokens of {} and {} of {}: data sets of one tokenizer have one type",
                           prefixes.front(), Name(type), prefix, Name(datasets.back().type()));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<IndexedDatasetWriter> writer,
                   IndexedDatasetWriter::Create(output, datasets.front().type()));
  for (const IndexedDataset& dataset : datasets)
    RETURN_IF_ERROR(Copy(dataset, 0, dataset.documents(), writer.get()));
  return Finish(output, writer.get());
}

absl::StatusOr<std::vector<MadeDataset>> SplitDataset(const std::string& prefix, int parts,
                                                      const std::string& output) {
  ASSIGN_OR_RETURN(const IndexedDataset dataset, IndexedDataset::Open(prefix));
  if (dataset.documents() < parts)
    return InvalidArgument("{} has {} documents, which are no {} parts", prefix, dataset.documents(), parts);
  std::vector<std::string> names;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers;
  std::int64_t begin = 0;
  std::int64_t tokens = 0;  // of documents before `end`
  for (std::int64_t part = 0; part < parts; ++part) {
    names.push_back(fmt::format("{}_{}", output, part));
    ASSIGN_OR_RETURN(writers.emplace_back(), IndexedDatasetWriter::Create(names.back(), dataset.type()));
    // Up to the document that reaches its share, and as few as leave one for each part behind it.
    std::int64_t end = begin;
    const std::int64_t most = dataset.documents() - (parts - 1 - part);
    const double share = static_cast<double>(dataset.tokens()) * static_cast<double>(part + 1) / parts;
    while (end < most && (end == begin || part + 1 == parts || static_cast<double>(tokens) < share)) {
      for (std::int64_t i = dataset.first_sequence(end); i < dataset.first_sequence(end + 1); ++i)
        tokens += dataset.lengths()[static_cast<std::size_t>(i)];
      ++end;
    }
    RETURN_IF_ERROR(Copy(dataset, begin, end, writers.back().get()));
    begin = end;
  }
  std::vector<MadeDataset> made;
  for (std::size_t i = 0; i < writers.size(); ++i) {
    ASSIGN_OR_RETURN(made.emplace_back(), Finish(names[i], writers[i].get()));
  }
  return made;
}

}  // namespace engine::data
