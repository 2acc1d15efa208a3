#include "engine/data/fill_in_middle.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/philox.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/tokenizer/description.h"
#include "engine/data/tokenizer/read_files.h"

namespace engine::data {
namespace {

constexpr double kWords = 4294967296.0;  // 2^32, how many values a word has

// Where the characters of UTF-8 begin, and the end.
std::vector<std::size_t> Boundaries(std::string_view text) {
  std::vector<std::size_t> boundaries;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U) boundaries.push_back(i);
  }
  boundaries.push_back(text.size());
  return boundaries;
}

// The id of a token that a key of the recipe names.
absl::StatusOr<std::int32_t> IdOf(const tokenizer::Description& description, const std::string& token,
                                  std::int64_t vocab) {
  const std::int32_t id = tokenizer::FindToken(description, token);
  if (id == tokenizer::kNoToken)
    return InvalidArgument("{}: has no token \"{}\"", description.source, Shown(token));
  if (id < vocab) return id;
  return InvalidArgument("token \"{}\" is {}, and the model's vocabulary has {} tokens", Shown(token), id,
                         vocab);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MiddleFiller>> MiddleFiller::Make(const recipe::Recipe& recipe,
                                                                 std::string* key) {
  const recipe::FillInMiddle& fim = recipe.data.fim;
  *key = "data.tokenizer.path";
  std::unique_ptr<MiddleFiller> filler(new MiddleFiller);
  filler->seed_ = static_cast<std::uint64_t>(recipe.training.seed);
  filler->rate_ = fim.rate;
  filler->spm_rate_ = fim.spm_rate;
  filler->fragment_rate_ = fim.fragment_rate;
  filler->no_prefix_ = fim.no_prefix;
  ASSIGN_OR_RETURN(filler->tokenizer_, MakeTokenizer(recipe.data.tokenizer));
  ASSIGN_OR_RETURN(const tokenizer::Description description,
                   tokenizer::ReadTokenizer(recipe.data.tokenizer.path));
  for (const auto& [name, text, id] :
       {std::tuple("data.fim.prefix_token", &fim.prefix_token, &filler->prefix_),
        std::tuple("data.fim.middle_token", &fim.middle_token, &filler->middle_),
        std::tuple("data.fim.suffix_token", &fim.suffix_token, &filler->suffix_)}) {
    *key = name;
    ASSIGN_OR_RETURN(*id, IdOf(description, *text, recipe.model.vocab));
  }
  if (fim.split_token.empty()) return filler;
  *key = "data.fim.split_token";
  ASSIGN_OR_RETURN(filler->split_, IdOf(description, fim.split_token, recipe.model.vocab));
  return filler;
}

void MiddleFiller::Rearrange(Split split, std::int64_t sample, std::int64_t document,
                             std::vector<std::int32_t>* ids) const {
  const std::optional<std::int32_t> beginning = tokenizer_->beginning_of_document();
  const bool begins = beginning.has_value() && !ids->empty() && ids->front() == *beginning;
  if (begins) ids->erase(ids->begin());
  RearrangeText(split, sample, document, ids);
  if (begins) ids->insert(ids->begin(), *beginning);
}

void MiddleFiller::RearrangeText(Split split, std::int64_t sample, std::int64_t document,
                                 std::vector<std::int32_t>* ids) const {
  const PhiloxKey key = MakePhiloxKey(seed_, fmt::format("fill in the middle, {}", Name(split)));
  // `part`: 0 of the whole document, and then its fragments from 1. A sample has fewer than 2^32 of either.
  const auto draw = [&](std::uint64_t part) {
    return Philox4x32(key, part << 32 | static_cast<std::uint64_t>(document),
                      static_cast<std::uint64_t>(sample));
  };
  if (!split_ || std::find(ids->begin(), ids->end(), *split_) == ids->end())
    return RearrangeFragment(draw(0), rate_, ids);
  if (draw(0)[0] >= rate_ * kWords) return;
  std::vector<std::int32_t> rearranged, fragment;
  std::uint64_t part = 0;
  for (auto begin = ids->begin();;) {
    const auto end = std::find(begin, ids->end(), *split_);
    fragment.assign(begin, end);
    RearrangeFragment(draw(++part), fragment_rate_, &fragment);
    rearranged.insert(rearranged.end(), fragment.begin(), fragment.end());
    if (end == ids->end()) break;
    rearranged.push_back(*split_);
    begin = end + 1;
  }
  *ids = std::move(rearranged);
}

void MiddleFiller::RearrangeFragment(const Words& words, double rate, std::vector<std::int32_t>* ids) const {
  if (ids->empty() || words[0] >= rate * kWords) return;
  const absl::StatusOr<std::string> text = tokenizer_->Decode(*ids);
  if (!text.ok() || (!no_prefix_.empty() && text->starts_with(no_prefix_))) return;
  std::vector<std::int32_t> again;
  if (!tokenizer_->EncodeTo(*text, &again).ok() || again != *ids) return;
  const std::vector<std::size_t> boundaries = Boundaries(*text);
  const auto place = [&](std::uint32_t word) {
    return boundaries[static_cast<std::size_t>((std::uint64_t{word} * boundaries.size()) >> 32)];
  };
  const auto [first, second] = std::minmax({place(words[2]), place(words[3])});
  const std::string_view whole = *text;
  const auto tokens_of = [&](std::string_view part, std::vector<std::int32_t>* out) {
    return tokenizer_->EncodeTo(part, out).ok();
  };
  std::vector<std::int32_t> prefix, middle, suffix;
  if (!tokens_of(whole.substr(0, first), &prefix) ||
      !tokens_of(whole.substr(first, second - first), &middle) || !tokens_of(whole.substr(second), &suffix)) {
    return;
  }
  const bool suffix_first = words[1] < spm_rate_ * kWords;
  std::vector<std::int32_t> rearranged = {prefix_};
  const auto append = [&](const std::vector<std::int32_t>& part) {
    rearranged.insert(rearranged.end(), part.begin(), part.end());
  };
  if (!suffix_first) append(prefix);
  rearranged.push_back(suffix_);
  append(suffix);
  rearranged.push_back(middle_);
  if (suffix_first) append(prefix);
  append(middle);
  *ids = std::move(rearranged);
}

}  // namespace engine::data
