// Who is asked before this process writes to a file: tests of what a failing write leaves, and faults that are made on purpose.
#pragma once

#include <functional>
#include <string>

namespace engine {

// Called before each write by File::WriteAt (base/file_io.h), on the thread that writes, with the file's path. The write fails with the
// errno that it returns, or happens where that is 0.
using WriteObserver = std::function<int(const std::string& path)>;

// In the place of the one before. Null: nobody is asked. Not while another thread calls this.
void SetWriteObserver(WriteObserver observer);

}  // namespace engine
