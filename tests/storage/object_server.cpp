#include "tests/storage/object_server.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "engine/base/philox.h"
#include "engine/storage/http.h"

namespace engine::storage {
namespace {

std::string ReadLine(std::FILE* from) {
  std::string line;
  for (int c = std::fgetc(from); c != EOF && c != '\n'; c = std::fgetc(from)) line += static_cast<char>(c);
  return line;
}

}  // namespace

ObjectServer::ObjectServer(const std::string& certificate)
    : scheme_(certificate.empty() ? "http://" : "https://") {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  REQUIRE(pipe(in.data()) == 0);
  REQUIRE(pipe(out.data()) == 0);
  const std::string script = std::string(ENGINE_SOURCE_DIR) + "/tests/storage/object_server.py";
  pid_ = fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    for (const int descriptor : {in[0], in[1], out[0], out[1]}) close(descriptor);
    const std::string key = certificate + ".key";
    const char* file = certificate.empty() ? nullptr : certificate.c_str();  // null ends the arguments
    execl("/usr/bin/python3", "python3", "-B", script.c_str(), file, key.c_str(), nullptr);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
  const std::string port = ReadLine(from_);
  REQUIRE_MESSAGE(!port.empty(), "object_server.py does not start");
  port_ = std::stoi(port);
  for (const auto& [name, value] : {std::pair<const char*, std::string>{"AWS_ACCESS_KEY_ID", "AKIDTEST"},
                                    {"AWS_SECRET_ACCESS_KEY", "secret/with+signs="},
                                    {"AWS_REGION", "test-region-1"},
                                    {"AWS_ENDPOINT_URL", url()},
                                    {"no_proxy", "127.0.0.1"}})
    setenv(name, value.c_str(), 1);
  unsetenv("AWS_SESSION_TOKEN");
  unsetenv("AWS_ENDPOINT_URL_S3");
}

ObjectServer::~ObjectServer() {
  std::fclose(to_);  // its stdin ends, and so does it
  std::fclose(from_);
  waitpid(pid_, nullptr, 0);
}

nlohmann::json ObjectServer::Command(const nlohmann::json& command) {
  std::fputs((command.dump() + "\n").c_str(), to_);
  std::fflush(to_);
  return nlohmann::json::parse(ReadLine(from_));
}

std::vector<std::string> ObjectServer::Requests() {
  std::vector<std::string> requests;
  for (const nlohmann::json& request : Command({{"log", true}}))
    requests.push_back(request["method"].get<std::string>() + " " + request["path"].get<std::string>());
  return requests;
}

std::string ObjectServer::Latin1(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | byte >> 6);
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

ObjectServer& TheServer() {
  static ObjectServer server;
  server.Command({{"faults", nlohmann::json::array()}, {"log", true}});
  SetPatience({.attempts = 3,
               .first_wait = std::chrono::milliseconds(4),
               .longest_wait = std::chrono::milliseconds(10),
               .slow = std::chrono::seconds(1)});
  return server;
}

std::string SomeBytes(std::size_t count) {
  std::string bytes;
  const PhiloxKey key = MakePhiloxKey(1, "bytes");
  for (std::uint64_t block = 0; bytes.size() < count; ++block) {
    const std::array<std::uint32_t, 4> words = Philox4x32(key, block, 0);
    bytes.append(reinterpret_cast<const char*>(words.data()), sizeof words);
  }
  bytes.resize(count);
  return bytes;
}

}  // namespace engine::storage
