// object_server.py, for as long as this lives, with the environment by which s3:// finds it.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace engine::storage {

class ObjectServer {
 public:
  // Sets AWS_…, for the whole process.
  ObjectServer();
  ~ObjectServer();
  ObjectServer(const ObjectServer&) = delete;
  ObjectServer& operator=(const ObjectServer&) = delete;

  nlohmann::json Command(const nlohmann::json& command);
  void Put(const std::string& name, const std::string& bytes) { Command({{"put", {name, Latin1(bytes)}}}); }
  // What only the next requests of this kind meet.
  void Inject(const nlohmann::json& fault) { Command({{"faults", nlohmann::json::array({fault})}}); }
  // "GET /b/k" of each request since the last call.
  std::vector<std::string> Requests();

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  static std::string Latin1(const std::string& bytes);  // as UTF-8

  int pid_ = 0;
  int port_ = 0;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

// One for all test cases, as each start of Python takes a third of a second: without faults and requests, and with little patience.
ObjectServer& TheServer();

// As many bytes, of which no two stretches are alike.
std::string SomeBytes(std::size_t count);

}  // namespace engine::storage
