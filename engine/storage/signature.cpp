#include "engine/storage/signature.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <new>

#include "engine/storage/location.h"

namespace engine::storage {
namespace {

using Digest = std::array<unsigned char, 32>;

std::string_view Bytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string Hex(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

// SHA-256 is always there, so what fails is memory.
Digest Hmac(std::string_view key, std::string_view text) {
  Digest digest{};
  unsigned length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
           &length) == nullptr) {
    throw std::bad_alloc();
  }
  return digest;
}

}  // namespace

std::string Sha256Hex(std::string_view bytes) {
  Digest digest{};
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1)
    throw std::bad_alloc();
  return Hex(Bytes(digest));
}

std::string TagOfParts(const std::vector<std::string>& tags) {
  constexpr std::size_t kDigits = 32;
  std::string digests;
  for (const std::string& tag : tags) {
    if (tag.size() != kDigits + 2 || !tag.starts_with('"') || !tag.ends_with('"')) return "";
    for (std::size_t i = 1; i <= kDigits; i += 2) {
      unsigned byte = 0;
      const auto [end, error] = std::from_chars(tag.data() + i, tag.data() + i + 2, byte, 16);
      if (error != std::errc() || end != tag.data() + i + 2) return "";
      digests += static_cast<char>(byte);
    }
  }
  Digest digest{};
  unsigned length = 0;
  if (EVP_Digest(digests.data(), digests.size(), digest.data(), &length, EVP_md5(), nullptr) != 1) return "";
  return fmt::format("\"{}-{}\"", Hex(Bytes(digest).substr(0, length)), tags.size());
}

std::string CanonicalQuery(Query query) {
  for (auto& [name, value] : query) {
    name = UriEncode(name, /*keep_slash=*/false);
    value = UriEncode(value, /*keep_slash=*/false);
  }
  std::sort(query.begin(), query.end());
  std::string text;
  for (const auto& [name, value] : query) {
    if (!text.empty()) text += '&';
    text += name;
    text += '=';
    text += value;
  }
  return text;
}

std::string Authorization(const Signable& request, const Credentials& credentials) {
  std::string headers;
  std::string names;
  for (const auto& [name, value] : request.headers) {
    headers += fmt::format("{}:{}\n", name, value);
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, CanonicalQuery(request.query),
                  headers, names, request.payload_sha256);
  const std::string date = request.time.substr(0, request.time.find('T'));
  const std::string scope = fmt::format("{}/{}/{}/aws4_request", date, request.region, request.service);
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", request.time, scope, Sha256Hex(canonical));
  Digest key = Hmac("AWS4" + credentials.secret_access_key, date);
  for (const std::string_view part : {std::string_view(request.region), std::string_view(request.service),
                                      std::string_view("aws4_request")})
    key = Hmac(Bytes(key), part);
  return fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                     credentials.access_key_id, scope, names, Hex(Bytes(Hmac(Bytes(key), to_sign))));
}

std::string AmzTime(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace engine::storage
