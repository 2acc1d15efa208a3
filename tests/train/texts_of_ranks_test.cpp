// What ranks say at rank 0, of any length.
#include "engine/train/texts_of_ranks.h"

#include <cstddef>
#include <string>
#include <vector>

#include "tests/launch/rendezvous_world.h"

namespace engine::train {

TEST_CASE("texts of ranks: texts at the limit of a message, and longer ones, come whole and in order") {
  constexpr std::size_t kPart = std::size_t{512} << 10;  // bytes that one message takes
  launch::World world(3);
  world.JoinAll();
  int round = 0;
  for (const std::size_t bytes : {std::size_t{0}, kPart - 1, kPart, kPart + 1, 2 * kPart, 3 * kPart + 7}) {
    INFO(bytes << " bytes");
    const auto text_of = [&](std::int64_t rank) {
      std::string text(bytes + static_cast<std::size_t>(rank), 'a');
      for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + (i / 1000 + i) % 23);
      return text;
    };
    const std::string key = fmt::format("round {}", round++);
    std::vector<std::string> texts;
    world.OnAll([&](launch::Client& client, std::int64_t rank) {
      const absl::StatusOr<std::vector<std::string>> found =
          TextsOfRanks(key, rank == 0 ? "" : text_of(rank), rank, 3, client);
      REQUIRE_MESSAGE(found.ok(), Message(found.status()));
      if (rank == 0) texts = *found;
    });
    REQUIRE(texts.size() == 2);
    for (std::int64_t rank = 1; rank < 3; ++rank)
      CHECK_MESSAGE(texts[static_cast<std::size_t>(rank - 1)] == text_of(rank), "rank " << rank);
  }
}

}  // namespace engine::train
