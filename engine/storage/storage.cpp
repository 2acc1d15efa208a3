#include "engine/storage/storage.h"

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/storage/local.h"
#include "engine/storage/remote.h"
#include "engine/storage/s3.h"

namespace engine::storage {
namespace {

absl::Status OnlyS3(std::string_view deed, const Location& location) {
  return Unimplemented("cannot {} {}: by http(s):// files are read alone; use s3:// or a path", deed,
                       ShownPath(location.name));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Object>> Open(const std::string& name) {
  ASSIGN_OR_RETURN(const Location location, Locate(name));
  return location.kind == Kind::kPath ? OpenFile(name) : OpenRemote(location);
}

absl::StatusOr<std::string> ReadAll(const std::string& name, std::int64_t most_bytes) {
  ASSIGN_OR_RETURN(const Location location, Locate(name));
  return location.kind == Kind::kPath ? ReadAllOfFile(name, most_bytes) : ReadAllRemote(location, most_bytes);
}

absl::StatusOr<std::vector<Entry>> List(const std::string& prefix) {
  ASSIGN_OR_RETURN(const Location location, Locate(prefix));
  if (location.kind == Kind::kHttp) return OnlyS3("list", location);
  return location.kind == Kind::kPath ? ListFiles(prefix) : ListS3(location);
}

absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string& name, std::int64_t most_bytes) {
  ASSIGN_OR_RETURN(const Location location, Locate(name));
  if (location.kind == Kind::kHttp) return OnlyS3("write", location);
  return location.kind == Kind::kPath ? CreateFileWriter(name) : CreateS3(location, most_bytes);
}

absl::Status Remove(const std::string& name) {
  ASSIGN_OR_RETURN(const Location location, Locate(name));
  if (location.kind == Kind::kHttp) return OnlyS3("remove", location);
  return location.kind == Kind::kPath ? RemoveFile(name) : RemoveS3(location);
}

absl::Status CheckUsable(const std::string& name) {
  ASSIGN_OR_RETURN(const Location location, Locate(name));
  if (location.kind != Kind::kS3) return absl::OkStatus();
  if (absl::Status status = S3FromEnvironment().status(); !status.ok())
    return WithContext(status, ShownPath(name));
  return absl::OkStatus();
}

}  // namespace engine::storage
