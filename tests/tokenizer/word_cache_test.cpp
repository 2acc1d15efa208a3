#include "engine/data/tokenizer/word_cache.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <numeric>
#include <string>
#include <thread>

namespace engine::tokenizer {
namespace {

using WordIds = std::vector<std::int32_t>;

// The word's ids, or none where the cache does not have it.
WordIds FoundIn(WordCache* cache, std::string_view word) {
  const WordCache::Key key = WordCache::KeyOf(word);
  std::array<std::int32_t, WordCache::kMostIds> ids = {};
  const std::size_t count = WordCache::Find(key, cache->PlaceOf(key), ids.data());
  return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)};
}

bool PutInto(WordCache* cache, std::string_view word, const WordIds& ids) {
  const WordCache::Key key = WordCache::KeyOf(word);
  return WordCache::Put(key, cache->PlaceOf(key), ids);
}

// Words that have one place.
std::vector<std::string> Neighbours(WordCache* cache, std::size_t count) {
  std::vector<std::string> words = {"word"};
  const WordCache::Place place = cache->PlaceOf(WordCache::KeyOf(words[0]));
  for (std::uint32_t i = 0; words.size() < count; ++i) {
    std::string word = "a prefix";  // keys that differ in one half only
    word.append(reinterpret_cast<const char*>(&i), sizeof i);
    if (cache->PlaceOf(WordCache::KeyOf(word)) == place) words.push_back(std::move(word));
  }
  return words;
}

// Ids of which no two words have one in the same place.
WordIds IdsOfWord(std::size_t word, std::size_t count) {
  WordIds ids;
  for (std::size_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(0xFFFFFF - 0x10101 * word - i));
  return ids;
}

TEST_CASE("the cache has the last two words of a place, with up to four ids of 24 bits") {
  WordCache cache;
  const std::vector<std::string> words = Neighbours(&cache, 6);
  for (std::size_t i = 0; i < words.size(); ++i) {
    CAPTURE(i);
    CHECK(FoundIn(&cache, words[i]).empty());
    const WordIds ids = IdsOfWord(i, 1 + i % WordCache::kMostIds);
    CHECK(PutInto(&cache, words[i], ids));
    CHECK(PutInto(&cache, words[i], ids));  // it is not there twice
    CHECK(FoundIn(&cache, words[i]) == ids);
    if (i > 0) CHECK(FoundIn(&cache, words[i - 1]) == IdsOfWord(i - 1, 1 + (i - 1) % WordCache::kMostIds));
    if (i > 1) CHECK(FoundIn(&cache, words[i - 2]).empty());
  }
  CHECK_FALSE(PutInto(&cache, words[0], IdsOfWord(0, 5)));
  CHECK_FALSE(PutInto(&cache, words[0], {}));
  CHECK_FALSE(PutInto(&cache, "sixteen bytes ..", IdsOfWord(0, 1)));
  CHECK(FoundIn(&cache, "sixteen bytes ..").empty());
}

TEST_CASE("threads that replace each other's words find the ids of the words that they look for") {
  WordCache cache;
  const std::vector<std::string> words = Neighbours(&cache, 8);
  const WordCache::Place place = cache.PlaceOf(WordCache::KeyOf(words[0]));
  std::vector<WordCache::Key> keys;
  std::vector<WordIds> ids;
  for (std::size_t i = 0; i < words.size(); ++i) {
    keys.push_back(WordCache::KeyOf(words[i]));
    ids.push_back(IdsOfWord(i, 1 + i % WordCache::kMostIds));
  }
  constexpr int kThreads = 3;
  std::array<std::size_t, kThreads> found = {};
  std::array<std::size_t, kThreads> wrong = {};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::array<std::int32_t, WordCache::kMostIds> out = {};
      for (std::size_t i = 0; i < 400'000; ++i) {
        const std::size_t word = (i * (2 * t + 1) + i / 64) % words.size();
        const std::size_t count = WordCache::Find(keys[word], place, out.data());
        if (count == 0) {
          WordCache::Put(keys[word], place, ids[word]);
        } else {
          ++found[t];
          wrong[t] +=
              std::equal(ids[word].begin(), ids[word].end(), out.begin(), out.begin() + count) ? 0 : 1;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::array<std::size_t, kThreads>{});
  CHECK(std::accumulate(found.begin(), found.end(), std::size_t{0}) > 0);
}

TEST_CASE("long words and words of many ids are found until their part's buffer is full, by all threads") {
  LongWordCache cache;
  const auto word_of = [](std::size_t i) { return fmt::format("{:0>{}}", i, 16 + i % 100); };
  std::array<std::size_t, 3> found = {};
  std::array<std::size_t, 3> wrong = {};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < found.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 60'000; ++i) {
        const std::size_t number = (i + 10 * t) % 50'000;
        const std::string word = word_of(number);
        const std::uint64_t hash = LongWordCache::HashOf(word);
        const WordIds expected = IdsOfWord(number % 200, 1 + number % 9);
        WordIds ids = {7};
        if (!cache.Find(word, hash, &ids)) {
          wrong[t] += ids == WordIds{7} ? 0 : 1;
          cache.Put(word, hash, expected);
        } else {
          ++found[t];
          ids.erase(ids.begin());
          wrong[t] += ids == expected ? 0 : 1;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::array<std::size_t, 3>{});
  CHECK(std::accumulate(found.begin(), found.end(), std::size_t{0}) > 0);
}

TEST_CASE("long words whose ids were overwritten when a buffer was full are not found") {
  LongWordCache cache;
  std::vector<std::string> words;
  std::size_t wrong = 0;
  for (std::size_t i = 0; words.size() < 2500; ++i) {
    const std::string word = fmt::format("{:0>16}", i);
    if (LongWordCache::HashOf(word) >> 59 != 0) continue;  // of another part
    cache.Put(word, LongWordCache::HashOf(word), IdsOfWord(words.size() % 200, 1 + words.size() % 9));
    words.push_back(word);
    for (std::size_t k = 0; k < words.size(); ++k) {
      WordIds ids;
      if (!cache.Find(words[k], LongWordCache::HashOf(words[k]), &ids)) continue;
      wrong += ids == IdsOfWord(k % 200, 1 + k % 9) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
  const std::string longest(LongWordCache::kMostBytes + 1, 'a');
  WordIds ids;
  cache.Put(longest, LongWordCache::HashOf(longest), WordIds{1});
  CHECK_FALSE(cache.Find(longest, LongWordCache::HashOf(longest), &ids));
}

}  // namespace
}  // namespace engine::tokenizer
