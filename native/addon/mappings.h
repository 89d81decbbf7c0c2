// The files that are mapped now. One that somebody truncates, or whose disk fails, would end the process by SIGBUS,
// without a word, at whatever thread reads the lost pages.
#pragma once
#include <cstddef>
#include <string>

namespace lpq::addon {

struct Mapping;

// Takes note of `bytes` mapped at `address` from `fd`, which it closes when the mapping is forgotten. The first call
// installs a handler
// of SIGBUS: a fault inside a noted mapping puts zeros where the pages were, so that the thread goes on, and marks the
// file; any other fault ends the process as if there were no handler.
Mapping* note_mapping(void* address, size_t bytes, int fd, const std::string& path);
// To be called before munmap.
void forget_mapping(Mapping* mapping);

// A file of which bytes were lost, now or earlier, and why; or nothing. Whoever is about to let go of a result asks.
struct LostFile {
  std::string path;
  std::string reason;
};
LostFile lost_file();

}  // namespace lpq::addon
