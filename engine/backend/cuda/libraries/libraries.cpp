#include "engine/backend/cuda/libraries/libraries.h"

#include <dlfcn.h>

#include <vector>

#include "engine/backend/cuda/libraries/library_functions.h"

namespace engine::backend::cuda {

LibraryFunctions library_functions;

namespace {

struct Library {
  const char* name;  // "cuDNN"
  const char* file;  // of the major version that this program is compiled for
  const char* purpose;
  const char* needed;      // in words
  const char* older_file;  // of the major version before; null: none is looked for
};

constexpr Library kCublasLt{.name = "cuBLASLt",
                            .file = "libcublasLt.so.13",
                            .purpose = "matrix products need",
                            .needed = "cuBLASLt 13 (of CUDA 13)",
                            .older_file = "libcublasLt.so.12"};
constexpr Library kCudnn{.name = "cuDNN",
                         .file = "libcudnn.so.9",
                         .purpose = "attention needs",
                         .needed = "cuDNN 9.14 or later, for CUDA 13",
                         .older_file = "libcudnn.so.8"};
constexpr Library kNccl{.name = "NCCL",
                        .file = "libnccl.so.2",
                        .purpose = "several GPUs need",
                        .needed = "NCCL 2.18 or later",
                        .older_file = nullptr};
constexpr std::size_t kLeastCublasLt = 130000;
constexpr std::size_t kLeastCudnn = 91400;  // attention's pattern graph is tried from here on
constexpr std::size_t kLeastNccl = 21800;   // 2.18: ncclCommSplit

// What is needed and how to get it there.
std::string WayOut(const Library& library) {
  return fmt::format("{} {}: install it, or name its folder in LD_LIBRARY_PATH", library.purpose,
                     library.needed);
}

std::string LoaderMessage() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

absl::StatusOr<void*> OpenLibrary(const Library& library) {
  if (void* handle = dlopen(library.file, RTLD_NOW | RTLD_LOCAL)) return handle;
  const std::string message = LoaderMessage();
  void* older = library.older_file != nullptr ? dlopen(library.older_file, RTLD_LAZY | RTLD_LOCAL) : nullptr;
  if (older != nullptr) {
    dlclose(older);
    return FailedPrecondition("{} is too old: {} is here, but not {} (the loader says: {}); {}", library.name,
                              library.older_file, library.file, message, WayOut(library));
  }
  return NotFound("{} is missing: looked for {}; the loader says: {}; {}", library.name, library.file,
                  message, WayOut(library));
}

template <typename Function>
absl::Status Find(void* handle, const Library& library, const char* function, Function** pointer) {
  *pointer = reinterpret_cast<Function*>(dlsym(handle, function));
  if (*pointer != nullptr) return absl::OkStatus();
  return FailedPrecondition("{} is too old: {} has no function {}; {}", library.name, library.file, function,
                            WayOut(library));
}

// The file that a function came from.
std::string PathOf(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

// major·10000 + minor·100 + patch.
std::string VersionText(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

template <typename GetVersion>
absl::StatusOr<LoadedLibrary> CheckVersion(const Library& library, GetVersion* function, std::size_t version,
                                           std::size_t least) {
  LoadedLibrary loaded{.version = VersionText(version),
                       .path = PathOf(reinterpret_cast<const void*>(function))};
  if (version >= least) return loaded;
  return FailedPrecondition("{} is too old: {} is version {}; {}", library.name, loaded.path, loaded.version,
                            WayOut(library));
}

// Once a library is loaded it stays: what it made may live as long as the process.

#define ENGINE_FIND(name) RETURN_IF_ERROR(Find(handle, library, #name, &found.name));
#define ENGINE_KEEP(name) library_functions.name = found.name;

absl::StatusOr<LoadedLibrary> OpenCublasLt() {
  ASSIGN_OR_RETURN(void* const handle, OpenLibrary(kCublasLt));
  LibraryFunctions found;
  RETURN_IF_ERROR(Find(handle, kCublasLt, "cublasLtGetVersion", &found.cublasLtGetVersion));
  ASSIGN_OR_RETURN(LoadedLibrary loaded, CheckVersion(kCublasLt, found.cublasLtGetVersion,
                                                      found.cublasLtGetVersion(), kLeastCublasLt));
  const Library& library = kCublasLt;
  ENGINE_CUBLASLT_FUNCTIONS(ENGINE_FIND)
  ENGINE_CUBLASLT_FUNCTIONS(ENGINE_KEEP)
  return loaded;
}

absl::StatusOr<LoadedLibrary> OpenCudnn() {
  ASSIGN_OR_RETURN(void* const handle, OpenLibrary(kCudnn));
  LibraryFunctions found;
  RETURN_IF_ERROR(Find(handle, kCudnn, "cudnnGetVersion", &found.cudnnGetVersion));
  ASSIGN_OR_RETURN(LoadedLibrary loaded,
                   CheckVersion(kCudnn, found.cudnnGetVersion, found.cudnnGetVersion(), kLeastCudnn));
  const Library& library = kCudnn;
  ENGINE_CUDNN_FUNCTIONS(ENGINE_FIND)
  ENGINE_CUDNN_FUNCTIONS(ENGINE_KEEP)
  return loaded;
}

absl::StatusOr<LoadedLibrary> OpenNccl() {
  ASSIGN_OR_RETURN(void* const handle, OpenLibrary(kNccl));
  LibraryFunctions found;
  RETURN_IF_ERROR(Find(handle, kNccl, "ncclGetVersion", &found.ncclGetVersion));
  int version = 0;
  if (found.ncclGetVersion(&version) != ncclSuccess) version = 0;
  ASSIGN_OR_RETURN(LoadedLibrary loaded,
                   CheckVersion(kNccl, found.ncclGetVersion, static_cast<std::size_t>(version), kLeastNccl));
  const Library& library = kNccl;
  ENGINE_NCCL_FUNCTIONS(ENGINE_FIND)
  ENGINE_NCCL_FUNCTIONS(ENGINE_KEEP)
  return loaded;
}

#undef ENGINE_FIND
#undef ENGINE_KEEP

}  // namespace

absl::StatusOr<LoadedLibrary> LoadCublasLt() {
  static const absl::StatusOr<LoadedLibrary> loaded = OpenCublasLt();
  return loaded;
}

absl::StatusOr<LoadedLibrary> LoadCudnn() {
  static const absl::StatusOr<LoadedLibrary> loaded = OpenCudnn();
  return loaded;
}

absl::StatusOr<LoadedLibrary> LoadNccl() {
  static const absl::StatusOr<LoadedLibrary> loaded = OpenNccl();
  return loaded;
}

}  // namespace engine::backend::cuda
