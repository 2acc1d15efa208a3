#include "engine/storage/storage.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/base/status.h"
#include "engine/storage/signature.h"
#include "tests/data/temp_dir.h"
#include "tests/storage/object_server.h"
#include "tests/storage/variable.h"

namespace engine::storage {
namespace {

using data::ReadFile;
using data::TempDir;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

template <typename T>
std::string ErrorOf(const absl::StatusOr<T>& result) {
  return result.ok() ? "" : Message(result.status());
}

std::shared_ptr<const Object> MustOpen(const std::string& name) {
  absl::StatusOr<std::shared_ptr<const Object>> object = Open(name);
  REQUIRE_MESSAGE(object.ok(), Message(object.status()));
  return *object;
}

absl::StatusOr<std::string> Range(const Object& object, std::int64_t offset, std::int64_t bytes) {
  std::string data(static_cast<std::size_t>(bytes), '\0');
  RETURN_IF_ERROR(object.ReadAt(data.data(), bytes, offset));
  return data;
}

absl::Status Write(const std::string& name, const std::string& bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Writer> writer, Create(name));
  for (std::size_t at = 0; at < bytes.size(); at += 3'000'000)
    RETURN_IF_ERROR(writer->Append(std::string_view(bytes).substr(at, 3'000'000)));
  return writer->Finish();
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string kBytes = SomeBytes(100'000);

}  // namespace

TEST_CASE("objects of s3://, http:// and paths are read alike") {
  ObjectServer& server = TheServer();
  const TempDir dir;
  server.Put("public/a b/ü+%#?.bin", kBytes);
  data::WriteFile(dir / "x", kBytes);
  for (const std::string& name : {std::string("s3://public/a b/ü+%#?.bin"),
                                  server.url() + "/public/a%20b/%C3%BC%2B%25%23%3F.bin", dir / "x"}) {
    CAPTURE(name);
    const std::shared_ptr<const Object> object = MustOpen(name);
    CHECK(object->name() == name);
    CHECK(object->size() == 100'000);
    CHECK(*Range(*object, 0, 100'000) == kBytes);
    CHECK(*Range(*object, 99'999, 1) == kBytes.substr(99'999));
    CHECK(*Range(*object, 1234, 4321) == kBytes.substr(1234, 4321));
    CHECK(*Range(*object, 100'000, 0) == "");
    CHECK_FALSE(Range(*object, 99'999, 2).ok());
    CHECK(*ReadAll(name, 100'000) == kBytes);
    CHECK(absl::IsResourceExhausted(ReadAll(name, 99'999).status()));
    CHECK(object->version().empty() == (name == dir / "x"));
  }
}

TEST_CASE("an empty object") {
  ObjectServer& server = TheServer();
  server.Put("bucket/empty", "");
  CHECK(MustOpen("s3://bucket/empty")->size() == 0);
  CHECK(ReadAll("s3://bucket/empty", 0)->empty());
}

TEST_CASE("many threads read one object") {
  ObjectServer& server = TheServer();
  server.Put("bucket/x", kBytes);
  const std::shared_ptr<const Object> object = MustOpen("s3://bucket/x");
  std::vector<std::thread> threads;
  std::vector<char> results(8);
  for (std::size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto offset = static_cast<std::int64_t>(i) * 10'000;
      const absl::StatusOr<std::string> part = Range(*object, offset, 10'000);
      results[i] = part.ok() && *part == kBytes.substr(i * 10'000, 10'000) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::count(results.begin(), results.end(), 1) == 8);
}

TEST_CASE("lists have all pages, in order") {
  ObjectServer& server = TheServer();
  const TempDir dir;
  std::filesystem::create_directories(dir / "list/sub");
  for (const char* key : {"list/a<&>", "list/b", "list/sub/c", "list2", "other"}) {
    server.Put(std::string("listed/") + key, "12");
    data::WriteFile(dir / key, "12");
  }
  server.Command({{"set", {{"list_page", 2}}}});
  for (const std::string& root : {std::string("s3://listed"), dir.path()}) {
    CAPTURE(root);
    Names names;
    const absl::StatusOr<std::vector<Entry>> entries = List(root + "/list");
    REQUIRE_MESSAGE(entries.ok(), Message(entries.status()));
    for (const Entry& entry : *entries) {
      CHECK(entry.bytes == 2);
      names.push_back(entry.name.substr(root.size()));
    }
    CHECK(names == Names{"/list/a<&>", "/list/b", "/list/sub/c", "/list2"});
    CHECK(List(root + "/list/")->size() == 3);
    CHECK(List(root + "/nothing")->empty());
  }
  server.Command({{"set", {{"list_page", 1000}}}});
  CHECK(List("s3://listed")->size() == 5);
  CHECK(absl::IsUnimplemented(List(server.url() + "/listed").status()));
}

TEST_CASE("small objects are written by one request, large ones by parts") {
  ObjectServer& server = TheServer();
  const std::size_t part = std::size_t{16} << 20;
  const std::string large = SomeBytes(3 * part + 5);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, part, part + 1, 3 * part + 5}) {
    CAPTURE(bytes);
    server.Requests();
    const absl::Status status = Write("s3://bucket/written x", large.substr(0, bytes));
    REQUIRE_MESSAGE(status.ok(), Message(status));
    CHECK(server.Command({{"sha256", "bucket/written x"}}) == Sha256Hex(large.substr(0, bytes)));
    CHECK(server.Requests().size() == (bytes <= part ? 1 : 2 + (bytes + part - 1) / part));
  }
  CHECK(server.Command({{"uploads", true}}) == 0);
}

TEST_CASE("what is not finished leaves nothing, and what was there before stays") {
  ObjectServer& server = TheServer();
  const TempDir dir;
  server.Put("bucket/kept", "before");
  data::WriteFile(dir / "kept", "before");
  const std::string large(std::size_t{40} << 20, 'x');
  for (const std::string& name : {std::string("s3://bucket/kept"), dir / "kept"}) {
    CAPTURE(name);
    {
      const absl::StatusOr<std::unique_ptr<Writer>> writer = Create(name);
      REQUIRE(writer.ok());
      REQUIRE((*writer)->Append(large).ok());
    }
    CHECK(*ReadAll(name, 100) == "before");
    if (!IsUrl(name)) CHECK(dir.entries() == 1);
    REQUIRE(Write(name, "after").ok());
    CHECK(*ReadAll(name, 100) == "after");
    CHECK(Remove(name).ok());
    CHECK(absl::IsNotFound(ReadAll(name, 100).status()));
  }
  CHECK(server.Command({{"uploads", true}}) == 0);
  CHECK(dir.entries() == 0);
  CHECK(absl::IsNotFound(Remove(dir / "kept")));
}

TEST_CASE("a part that cannot be written ends the upload") {
  ObjectServer& server = TheServer();
  server.Inject({{"method", "PUT"},
                 {"path", "partNumber=2"},
                 {"do", "status"},
                 {"status", 403},
                 {"code", "AccessDenied"}});
  const absl::Status status = Write("s3://bucket/torn", std::string(std::size_t{40} << 20, 'x'));
  CHECK(absl::IsPermissionDenied(status));
  CHECK(Has(Message(status), "cannot write part 2 of s3://bucket/torn: PUT http"));
  CHECK(server.Command({{"uploads", true}}) == 0);
  CHECK(absl::IsNotFound(Open("s3://bucket/torn").status()));
}

TEST_CASE("the end of an upload: failures that pass, failures in an answer of 200, a lost answer") {
  ObjectServer& server = TheServer();
  const std::string bytes(std::size_t{17} << 20, 'x');
  const std::string path = "\\?uploadId=";
  const auto inject = [&](Json fault) {
    fault["method"] = "POST";
    fault["path"] = path;
    server.Inject(fault);
  };
  inject({{"do", "error200"}, {"code", "InternalError"}});
  CHECK(Write("s3://bucket/big", bytes).ok());
  inject({{"do", "error200"}, {"code", "InvalidPart"}});
  CHECK(Has(Message(Write("s3://bucket/big", bytes)), "cannot complete s3://bucket/big"));
  inject({{"do", "lose"}});
  CHECK(Write("s3://bucket/big2", bytes).ok());
  CHECK(MustOpen("s3://bucket/big2")->size() == static_cast<std::int64_t>(bytes.size()));
  inject({{"do", "status"}, {"status", 404}, {"code", "NoSuchUpload"}});
  CHECK(Has(Message(Write("s3://bucket/big3", bytes)),
            "knows the upload no more (NoSuchUpload): something else has ended it"));
  server.Command({{"set", {{"uploads", Json::object()}}}});
}

TEST_CASE("what may pass is tried again") {
  ObjectServer& server = TheServer();
  server.Put("bucket/x", kBytes);
  const std::shared_ptr<const Object> object = MustOpen("s3://bucket/x");
  server.Requests();
  for (const int status : {429, 500, 502, 503, 504}) {
    CAPTURE(status);
    server.Inject({{"do", "status"}, {"status", status}, {"times", 2}});
    CHECK(*Range(*object, 0, 100'000) == kBytes);
    CHECK(server.Requests().size() == 3);
  }
  for (const char* kind : {"reset", "cut"}) {
    CAPTURE(kind);
    server.Inject({{"do", kind}, {"bytes", 30'000}, {"times", 2}});
    CHECK(*Range(*object, 10, 99'000) == kBytes.substr(10, 99'000));
    const Json log = server.Command({{"log", true}});
    REQUIRE(log.size() == 3);
    if (std::string(kind) == "cut")
      CHECK(log[2]["range"] == "bytes=60010-99009");  // what has come is not asked for again
    server.Inject({{"do", kind}, {"bytes", 0}});
    CHECK(*ReadAll("s3://bucket/x", 100'000) == kBytes);
    server.Inject({{"do", kind}, {"bytes", 30'000}});
    CHECK(*ReadAll("s3://bucket/x", 100'000) == kBytes);
    server.Requests();
  }
  server.Inject({{"method", "PUT"}, {"do", "lose"}});
  CHECK(Write("s3://bucket/y", "z").ok());
  server.Inject({{"do", "status"}, {"status", 503}, {"code", "SlowDown"}, {"times", 9}});
  const std::string error = ErrorOf(Range(*object, 0, 10));
  CHECK(Has(error, "cannot read s3://bucket/x: GET " + server.url() +
                       "/bucket/x: the server answers 503 SlowDown: as the test asks for (3 attempts)"));
}

TEST_CASE("a server that stands still is not waited for without end") {
  ObjectServer& server = TheServer();
  server.Put("bucket/x", kBytes);
  const std::shared_ptr<const Object> object = MustOpen("s3://bucket/x");
  server.Inject({{"do", "stall"}, {"bytes", 3000}, {"seconds", 20}});
  const auto begin = std::chrono::steady_clock::now();
  CHECK(*Range(*object, 0, 100'000) == kBytes);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK(server.Command({{"log", true}}).back()["range"] == "bytes=3000-99999");
}

TEST_CASE("lengths that are not those of the body") {
  ObjectServer& server = TheServer();
  server.Put("bucket/x", kBytes);
  const std::shared_ptr<const Object> object = MustOpen("s3://bucket/x");
  server.Inject({{"do", "short"}, {"bytes", 1000}});
  CHECK(*Range(*object, 0, 100'000) == kBytes);
  server.Inject({{"do", "long"}});
  CHECK(*Range(*object, 0, 100'000) == kBytes);
  server.Inject({{"do", "long"}, {"times", 3}});
  CHECK(Has(ErrorOf(Range(*object, 0, 100'000)), ", 3 times: Transferred a partial file"));
  server.Inject({{"do", "shift"}});
  CHECK(*Range(*object, 5, 10) == kBytes.substr(5, 10));
}

TEST_CASE("a server without ranges is refused, where it is opened and later") {
  ObjectServer& server = TheServer();
  server.Put("public/x", kBytes);
  const std::string name = server.url() + "/public/x";
  server.Inject({{"do", "whole"}});
  const absl::StatusOr<std::shared_ptr<const Object>> opened = Open(name);
  CHECK(absl::IsUnimplemented(opened.status()));
  CHECK(Has(ErrorOf(opened), "the server gives the whole file where a range of its bytes is asked for"));
  CHECK(server.Requests().size() == 1);
  const std::shared_ptr<const Object> object = MustOpen(name);
  server.Inject({{"do", "whole"}});
  CHECK(absl::IsUnimplemented(Range(*object, 0, 10).status()));
}

TEST_CASE("a web server may send elsewhere, S3 may not") {
  ObjectServer& server = TheServer();
  server.Put("public/there", kBytes);
  const Json elsewhere = {
      {"path", "/here"}, {"do", "redirect"}, {"to", server.url() + "/public/there"}, {"times", 9}};
  server.Inject(elsewhere);
  const std::shared_ptr<const Object> object = MustOpen(server.url() + "/public/here");
  CHECK(*Range(*object, 7, 1000) == kBytes.substr(7, 1000));
  CHECK(*ReadAll(server.url() + "/public/here", 100'000) == kBytes);
  CHECK(Has(ErrorOf(Open("s3://public/here")), "the server answers 302"));
  server.Inject(
      {{"path", "/here"}, {"do", "redirect"}, {"to", server.url() + "/public/here"}, {"times", 99}});
  CHECK(absl::IsUnavailable(Open(server.url() + "/public/here").status()));
  server.Inject({{"path", "/here"}, {"do", "redirect"}, {"to", "file:///etc/passwd"}, {"times", 9}});
  CHECK_FALSE(Open(server.url() + "/public/here").ok());
}

TEST_CASE("an object that has changed is noticed") {
  ObjectServer& server = TheServer();
  for (const bool strong : {true, false}) {
    CAPTURE(strong);
    const auto put = [&](const std::string& bytes, const char* tag) {
      Json command = {{"put", {"bucket/changing", bytes}}};
      if (!strong) command["etag"] = tag;
      server.Command(command);
    };
    put("0123456789", "W/\"1\"");
    const std::shared_ptr<const Object> object = MustOpen("s3://bucket/changing");
    CHECK(*Range(*object, 0, 10) == "0123456789");
    server.Requests();
    put("0123456780", "W/\"2\"");
    const absl::StatusOr<std::string> range = Range(*object, 0, 3);
    CHECK(absl::IsDataLoss(range.status()));
    CHECK(Has(ErrorOf(range), "it has changed since it was opened"));
    const Json log = server.Command({{"log", true}});
    CHECK(log.size() == 1);
    CHECK(log[0]["if_match"] == (strong ? Json(object->version()) : Json()));
  }
  server.Put("bucket/changing", kBytes);
  const std::shared_ptr<const Object> object = MustOpen("s3://bucket/changing");
  server.Command(
      {{"faults", Json::array({{{"do", "cut"}, {"bytes", 50'000}}, {{"do", "change"}, {"bytes", 1}}})}});
  CHECK(absl::IsDataLoss(Range(*object, 0, 100'000).status()));  // between two attempts
}

TEST_CASE("refusals are told at once, with what would be right") {
  ObjectServer& server = TheServer();
  server.Put("bucket/x", kBytes);
  server.Requests();
  CHECK(ErrorOf(Open("s3://bucket/missing")) == "cannot open s3://bucket/missing: GET " + server.url() +
                                                    "/bucket/missing: the server answers 404 NoSuchKey: The "
                                                    "specified key does not exist.; is the key right?");
  CHECK(server.Requests().size() == 1);
  CHECK(absl::IsPermissionDenied(Open(server.url() + "/bucket/x").status()));
  CHECK(Has(ErrorOf(Open(server.url() + "/bucket/x")), "http(s):// sends no credentials"));
  {
    const Variable secret("AWS_SECRET_ACCESS_KEY", "hunter2");
    const std::string error = ErrorOf(Open("s3://bucket/x"));
    CHECK(Has(error, "403 SignatureDoesNotMatch"));
    CHECK(Has(error, "AWS_SECRET_ACCESS_KEY is not that of AWS_ACCESS_KEY_ID"));
    CHECK_FALSE(Has(error, "hunter2"));
  }
  {
    const Variable id("AWS_ACCESS_KEY_ID", "AKIDOTHER");
    CHECK(Has(ErrorOf(Open("s3://bucket/x")), "the server does not know AWS_ACCESS_KEY_ID"));
  }
  {
    const Variable region("AWS_REGION", "elsewhere");
    CHECK(Has(ErrorOf(Open("s3://bucket/x")), "400 AuthorizationHeaderMalformed"));
  }
  {
    const Variable endpoint("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    const std::string error = ErrorOf(Open("s3://bucket/x"));
    CHECK(Has(error, "cannot open s3://bucket/x: GET http://127.0.0.1:1/bucket/x, 3 times: "));
  }
}

TEST_CASE("tokens of sessions are signed and sent") {
  ObjectServer& server = TheServer();
  server.Put("bucket/x", kBytes);
  server.Command({{"set", {{"token", "of/the+session="}}}});
  CHECK(Has(ErrorOf(Open("s3://bucket/x")), "AWS_SESSION_TOKEN has to be made anew"));
  {
    const Variable token("AWS_SESSION_TOKEN", "of/the+session=");
    CHECK(Open("s3://bucket/x").ok());
  }
  server.Command({{"set", {{"token", nullptr}}}});
}

TEST_CASE("what is missing in the environment is told without a request") {
  ObjectServer& server = TheServer();
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}) {
    const Variable unset(name, nullptr);
    const absl::Status status = CheckUsable("s3://bucket/x");
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(Has(Message(status), std::string("and ") + name + " is not set"));
    CHECK(Open("s3://bucket/x").status() == status);
  }
  {
    const Variable unset("AWS_REGION", nullptr);
    CHECK(Has(Message(CheckUsable("s3://bucket/x")), "needs the bucket's region in AWS_REGION"));
    const Variable other("AWS_DEFAULT_REGION", "test-region-1");
    CHECK(CheckUsable("s3://bucket/x").ok());
  }
  {
    const Variable endpoint("AWS_ENDPOINT_URL_S3", "localhost:9000");
    CHECK(Message(CheckUsable("s3://bucket/x")) ==
          "s3://bucket/x: AWS_ENDPOINT_URL_S3 is \"localhost:9000\", and must be http(s)://HOST[:PORT]");
  }
  {
    const Variable secret("AWS_SECRET_ACCESS_KEY", "hunter2\n");
    CHECK(Has(Message(CheckUsable("s3://bucket/x")), "AWS_SECRET_ACCESS_KEY holds a blank, a line end"));
    CHECK_FALSE(Has(Message(CheckUsable("s3://bucket/x")), "hunter2"));
  }
  const Variable none("AWS_ACCESS_KEY_ID", nullptr);
  CHECK(CheckUsable("path").ok());
  CHECK(CheckUsable("http://host/x").ok());
  CHECK(absl::IsInvalidArgument(CheckUsable("gs://host/x")));
  CHECK(server.Requests().empty());
}

TEST_CASE("what is too large for S3 is told before anything is sent") {
  TheServer();
  CHECK(absl::IsResourceExhausted(Create("s3://bucket/x", (std::int64_t{5} << 40) + 1).status()));
  CHECK(absl::IsUnimplemented(Create("http://host/x").status()));
}

}  // namespace engine::storage
