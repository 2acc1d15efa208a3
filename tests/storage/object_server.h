// object_server.py, for as long as this lives, with the environment by which s3:// finds it.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace engine::storage {

class ObjectServer {
 public:
  // Sets AWS_…, for the whole process. `certificate`: where not empty, a file of a certificate in PEM for TLS; its key is in
  // certificate + ".key".
  explicit ObjectServer(const std::string& certificate = "");
  ~ObjectServer();
  ObjectServer(const ObjectServer&) = delete;
  ObjectServer& operator=(const ObjectServer&) = delete;

  nlohmann::json Command(const nlohmann::json& command);
  void Put(const std::string& name, const std::string& bytes) { Command({{"put", {name, Latin1(bytes)}}}); }
  // What only the next requests of this kind meet.
  void Inject(const nlohmann::json& fault) { Command({{"faults", nlohmann::json::array({fault})}}); }
  // "GET /b/k" of each request since the last call.
  std::vector<std::string> Requests();

  int port() const { return port_; }
  std::string url() const { return scheme_ + "127.0.0.1:" + std::to_string(port_); }

 private:
  static std::string Latin1(const std::string& bytes);  // as UTF-8

  const std::string scheme_;  // "http://" or "https://"
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
