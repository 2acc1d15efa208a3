// Runs on data sets that lie on a server.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/data/indexed_format.h"
#include "tests/storage/object_server.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

// A mask of the loss beside DIR/text, which nothing reads but samples do: all tokens count.
void WriteMask(const std::string& prefix) {
  const absl::StatusOr<data::IndexedDataset> text = data::IndexedDataset::Open(prefix);
  REQUIRE(text.ok());
  const auto writer = data::IndexedDatasetWriter::Create(data::LossMaskPrefix(prefix), data::TokenType::kU8);
  REQUIRE(writer.ok());
  for (const std::int32_t tokens : text->lengths()) {
    const std::vector<std::int32_t> ones(static_cast<std::size_t>(tokens), 1);
    REQUIRE((*writer)->AddDocument({&ones, 1}).ok());
  }
  REQUIRE((*writer)->Finish().ok());
}

// What `requests` has of samples' masks: the first request for an object is for its first two bytes, when it is opened.
bool AsksForMask(const nlohmann::json& requests) {
  return std::any_of(requests.begin(), requests.end(), [](const nlohmann::json& request) {
    return request["path"] == "/sets/text_loss_mask.bin" && request["range"] != "bytes=0-1";
  });
}

// A CPU device whose first backend is made when the server has been asked for masks, at most five seconds later.
state::Device DeviceAfterMask(storage::ObjectServer* server, std::atomic<bool>* asked) {
  state::Device device = CpuDevice();
  const auto once = std::make_shared<std::once_flag>();
  device.make_backend = [=, make = device.make_backend](std::int64_t rank, std::int64_t world) {
    std::call_once(*once, [&] {
      const auto begin = std::chrono::steady_clock::now();
      while (!*asked && std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)) {
        *asked = AsksForMask(server->Command({{"log", true}}));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    return make(rank, world);
  };
  return device;
}

}  // namespace

TEST_CASE("the first samples are asked for before kernels are prepared, of new runs and of resumed ones") {
  storage::ObjectServer& server = storage::TheServer();
  const TempDir folder;
  setenv("ENGINE_CACHE", folder.path().c_str(), 1);
  WriteDataset(folder / "text", 60);
  WriteMask(folder / "text");
  for (const std::string name : {"text.bin", "text.idx", "text_loss_mask.bin", "text_loss_mask.idx"})
    server.Put("sets/" + name, data::ReadFile(folder / name));
  for (const char* iterations : {"training.iterations=1", "training.iterations=2"}) {
    CAPTURE(iterations);
    recipe::Recipe recipe = RunRecipe(folder, {"parallelism.pp=2", iterations});
    recipe.data.paths = {"s3://sets/text"};
    std::atomic<bool> asked = false;
    server.Requests();  // those of before
    const RunResult run = RunCaught(recipe, folder / "out", false, DeviceAfterMask(&server, &asked));
    REQUIRE_MESSAGE(run.status.ok(), Message(run.status));
    CHECK(asked);
  }
  unsetenv("ENGINE_CACHE");
}

}  // namespace engine::train::testing
