#include "engine/view/take_record.h"

#include <doctest/doctest.h>

#include "engine/view/run_view.h"

namespace engine::view {

TEST_CASE("a record of a checkpoint says which one it is of, and an old one is of its own iteration") {
  simdjson::dom::parser parser;
  RunView view;
  CHECK(TakeRecord(R"({"iteration":7,"saved_iteration":5,"save_seconds":2.5,"stall_seconds":0.25})", &parser,
                   &view));
  REQUIRE(view.checkpoint_records.size() == 1);
  CHECK(view.checkpoint_records[0].iteration == 5);
  CHECK(view.checkpoint_records[0].stall_s == 0.25);
  CHECK(TakeRecord(R"({"iteration":8,"save_seconds":2.5})", &parser, &view));
  CHECK(view.checkpoint_records[1].iteration == 8);
}

}  // namespace engine::view
