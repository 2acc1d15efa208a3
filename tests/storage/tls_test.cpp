// https:// and s3:// over TLS: whom the program trusts.
#include <doctest/doctest.h>

#include <cstdlib>

#include "engine/base/status.h"
#include "engine/storage/storage.h"
#include "tests/data/temp_dir.h"
#include "tests/storage/object_server.h"
#include "tests/storage/variable.h"

namespace engine::storage {
namespace {

// A certificate for 127.0.0.1 that no one has signed but itself, in FILE, and its key in FILE.key.
void MakeCertificate(const std::string& file) {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test -addext "
      "subjectAltName=IP:127.0.0.1 -keyout " +
      file + ".key -out " + file + " 2> " + file + ".log";
  REQUIRE_MESSAGE(std::system(command.c_str()) == 0, data::ReadFile(file + ".log"));
}

std::string ReadWhole(const std::string& name) {
  const absl::StatusOr<std::shared_ptr<const Object>> object = Open(name);
  if (!object.ok()) return Message(object.status());
  std::string bytes(static_cast<std::size_t>((*object)->size()), '\0');
  const absl::Status status = (*object)->ReadAt(bytes.data(), (*object)->size(), 0);
  return status.ok() ? bytes : Message(status);
}

}  // namespace

TEST_CASE(
    "over TLS a server is trusted whose certificate is the system's or in the file that a variable names") {
  TheServer();  // whose variables are there again at the end
  const Variable endpoint("AWS_ENDPOINT_URL", nullptr);
  const Variable aws("AWS_CA_BUNDLE", nullptr), curl("CURL_CA_BUNDLE", nullptr),
      ssl("SSL_CERT_FILE", nullptr);
  const data::TempDir dir;
  const std::string certificate = dir / "server.pem", other = dir / "other.pem";
  MakeCertificate(certificate);
  MakeCertificate(other);
  ObjectServer server(certificate);
  server.Put("public/o", "what is asked for");
  const std::string url = server.url() + "/public/o";
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const std::string refused = ReadWhole(url);
  CHECK_MESSAGE(contains(refused, "certificate"), refused);
  CHECK_MESSAGE(
      refused.ends_with("; AWS_CA_BUNDLE or CURL_CA_BUNDLE or SSL_CERT_FILE names a file of certificates to "
                        "trust, in PEM"),
      refused);
  CHECK_MESSAGE(!contains(refused, " times"), refused);  // trying again would not help
  for (const char* name : {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    CAPTURE(name);
    const Variable bundle(name, certificate.c_str());
    CHECK(ReadWhole(url) == "what is asked for");
    CHECK(ReadWhole("s3://public/o") == "what is asked for");
  }
  const Variable bundle("SSL_CERT_FILE", certificate.c_str());
  const std::string of_another =
      ReadWhole("https://localhost:" + std::to_string(server.port()) + "/public/o");
  CHECK_MESSAGE(contains(of_another, "localhost"), of_another);
  CHECK_MESSAGE(contains(of_another, "; trusted are the certificates of " + certificate), of_another);
  const Variable wrong("CURL_CA_BUNDLE", other.c_str());  // it comes before the right one
  const std::string untrusted = ReadWhole(url);
  CHECK_MESSAGE(
      untrusted.ends_with("; trusted are the certificates of " + other + ", which CURL_CA_BUNDLE names"),
      untrusted);
  const Variable missing("AWS_CA_BUNDLE", (dir / "none.pem").c_str());
  const std::string without = ReadWhole(url);
  CHECK_MESSAGE(without.ends_with("; AWS_CA_BUNDLE has to name a file of certificates in PEM"), without);
  CHECK_MESSAGE(contains(without, dir / "none.pem"), without);
  CHECK(server.Requests().size() >= 6);
}

}  // namespace engine::storage
