// Bytes that lie in files, in buckets of S3 or on servers of the web, under one interface. A name is a path, s3://bucket/key or
// http(s)://host/path (location.h). For a path no network and no library of the network is touched.
//
// Errors name the deed, the name, the address that was asked, the status and the server's own message: NotFound for what is
// not there, PermissionDenied for what may not be, InvalidArgument for a name or a variable that will not do, FailedPrecondition where
// credentials are missing, DataLoss where bytes are no longer those that were opened, Unimplemented for what a server or a kind of place
// cannot do, Unavailable for the rest. What may pass (429, 500, 502, 503, 504, a lost or a slow connection) has been tried again
// by then (http.h, Patience).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/storage/location.h"

namespace engine::storage {

// What was opened for reading. Reads are of the bytes that were there then: where another object has come in its place, they fail.
class Object {
 public:
  virtual ~Object() = default;

  const std::string& name() const { return name_; }
  std::int64_t size() const { return size_; }  // in bytes
  // Differs where the content does, as far as the place tells: the ETag with its quotes, else the time of the last change, else empty.
  const std::string& version() const { return version_; }

  // Bytes [offset, offset + bytes), which must be there. Callable from any thread.
  virtual absl::Status ReadAt(void* data, std::int64_t bytes, std::int64_t offset) const = 0;

 protected:
  Object(std::string name, std::int64_t size, std::string version)
      : name_(std::move(name)), size_(size), version_(std::move(version)) {}

 private:
  const std::string name_;
  const std::int64_t size_;
  const std::string version_;
};

// One request, of two bytes: a server that cannot give ranges is an error here.
absl::StatusOr<std::shared_ptr<const Object>> Open(const std::string& name);

// All of it; ResourceExhausted where that is more than `most_bytes`.
absl::StatusOr<std::string> ReadAll(const std::string& name, std::int64_t most_bytes);

struct Entry {
  std::string name;
  std::int64_t bytes = 0;
};
// What has a name that begins with `prefix`, in the order of its bytes: of a path the regular files, at any depth. None is no error. A
// server of http(s):// has no lists: Unimplemented.
absl::StatusOr<std::vector<Entry>> List(const std::string& prefix);

// Writes under a name all at once: until Finish has returned OK nothing, or what was there before, has the name, and without it nothing
// of what was written stays, unless the process is killed: then a file NAME.tmp.PID stays, or parts in the bucket, which a rule of its
// life cycle (AbortIncompleteMultipartUpload) removes. For one thread.
class Writer {
 public:
  virtual ~Writer() = default;
  // After an error nothing but destruction is left.
  virtual absl::Status Append(std::string_view bytes) = 0;
  // A file is on the disk then.
  virtual absl::Status Finish() = 0;
};

// `most_bytes` is what will be written at most, where that is known: S3 takes 10,000 parts, which are made as large as that needs; without
// it there is room for 156 GiB, in parts of 16 MiB. Four of them are in memory. http(s):// cannot be written: Unimplemented.
absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string& name, std::int64_t most_bytes = 0);

// Removes one file or object. What is not there is NotFound for a path, and no error for S3, which does not tell.
absl::Status Remove(const std::string& name);

// Whether names of this kind can be used as far as this machine knows, without asking a server: the name is right (Locate), and what
// s3:// needs is in the environment.
absl::Status CheckUsable(const std::string& name);

}  // namespace engine::storage
