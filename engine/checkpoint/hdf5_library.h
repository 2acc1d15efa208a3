// The few pieces of HDF5 that checkpoints use. HDF5 1.10 crashes the process when a disk fails under it, so
// it never sees one: it lays its files out in memory, and our own code, whose errors are statuses, takes them
// to the disk. It crashes where memory ends, too, so that there has to be some left before it is used.
#pragma once

#include <absl/status/statusor.h>
#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "engine/base/dtype.h"
#include "engine/base/file_io.h"
#include "engine/base/shape.h"

namespace engine::checkpoint {

// To be asked before files are laid out. Error: less than 128 MiB of memory are left, far more than a layout takes.
absl::Status ExpectMemoryForHdf5();

// Hold one around every use of HDF5: takes its global lock once and silences its error printing in this
// thread.
class Hdf5Session {
 public:
  Hdf5Session();
  ~Hdf5Session();
  Hdf5Session(const Hdf5Session&) = delete;
  Hdf5Session& operator=(const Hdf5Session&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t printer_ = nullptr;
  void* printer_data_ = nullptr;
};

// Owns an HDF5 identifier of any kind.
class Hid {
 public:
  using Closer = herr_t (*)(hid_t);
  Hid() = default;
  Hid(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Hid(Hid&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  Hid& operator=(Hid&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(closer_, other.closer_);
    return *this;
  }
  ~Hid() { Close(); }

  bool ok() const { return id_ >= 0; }
  hid_t get() const { return id_; }
  bool Close() {  // true if it was open and closed well
    return id_ >= 0 && closer_(std::exchange(id_, -1)) >= 0;
  }

 private:
  hid_t id_ = -1;
  Closer closer_ = nullptr;
};

Hid FileType(DType dtype);        // little-endian; bf16 and f16 are custom floats
Hid SpaceOf(const Shape& shape);  // scalar for rank 0
Hid LinksWithGroups();            // link creation that makes the groups of "a/b/c"
Hid DatasetProperties();          // no times, so that equal content gives equal bytes

// A new HDF5 file in `memory`, whose name goes at once; its bytes are complete when the returned identifier
// is closed.
Hid CreateHdf5File(const File& memory);

bool PutAttribute(const Hid& object, const char* name, const std::string& text);
bool PutAttribute(const Hid& object, const char* name, const Shape& numbers);  // skipped for rank 0

}  // namespace engine::checkpoint
