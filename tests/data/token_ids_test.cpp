#include "engine/data/token_ids.h"

#include <doctest/doctest.h>

#include "engine/base/status.h"

namespace engine::data {
namespace {

std::string IdsOrError(const std::string& text) {
  const absl::StatusOr<std::vector<std::int32_t>> ids = ParseTokenIds("ids.txt", text, 100);
  if (!ids.ok()) return Message(ids.status());
  std::string shown;
  for (const std::int32_t id : *ids) shown += std::to_string(id) + ";";
  return shown;
}

}  // namespace

TEST_CASE("token ids: separated by blanks, or a JSON list") {
  for (const char* text : {"1 22 99", " 1\t22\n\n99\r\n", "[1,22,99]", "\n[ 1, 22 ,\n99 ] \n"}) {
    CAPTURE(text);
    CHECK(IdsOrError(text) == "1;22;99;");
  }
  for (const char* text : {"", " \n", "[]", " [ ] "}) CHECK(IdsOrError(text).empty());
}

TEST_CASE("token ids: what is wrong, and where") {
  CHECK(IdsOrError("1 2\n3 100 5") ==
        "ids.txt:2:3: error: id 100 is outside of the model's vocabulary, 0 to 99");
  CHECK(IdsOrError("-1") == "ids.txt:1:1: error: id -1 is outside of the model's vocabulary, 0 to 99");
  CHECK(IdsOrError("[1, 99999999999999999999999]") ==
        "ids.txt:1:5: error: id 99999999999999999999… is outside of the model's vocabulary, 0 to 99");
  CHECK(IdsOrError("1 two 3") == "ids.txt:1:3: error: 'two' is no token id");
  CHECK(IdsOrError("\033[31mred") == "ids.txt:1:1: error: '\\x1b' is no token id");
  CHECK(IdsOrError("\033red") == "ids.txt:1:1: error: '\\x1bred' is no token id");
  CHECK(IdsOrError("1.5") == "ids.txt:1:1: error: '1.5' is no token id");
  CHECK(IdsOrError("1, 2") == "ids.txt:1:2: error: ',' is no token id");
  CHECK(IdsOrError("[1 2]") == "ids.txt:1:4: error: ',' or ']' is missing");
  CHECK(IdsOrError("[1, 2") == "ids.txt:1:6: error: the list has no end, ']'");
  CHECK(IdsOrError("[1,") == "ids.txt:1:4: error: the list has no end, ']'");
  CHECK(IdsOrError("[1,]") == "ids.txt:1:4: error: ']' is no token id");
  CHECK(IdsOrError("[1] 2") == "ids.txt:1:5: error: something follows the list");
  CHECK(IdsOrError("[[1]]") == "ids.txt:1:2: error: '[' is no token id");
}

}  // namespace engine::data
