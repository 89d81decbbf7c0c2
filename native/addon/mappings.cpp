#include "addon/mappings.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

namespace lpq::addon {

// Never freed, for a handler may be reading the list: what is forgotten waits to be used again.
struct Mapping {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<size_t> bytes{0};
  std::atomic<bool> lost{false};
  int fd = -1;
  std::string path;
  Mapping* next = nullptr;
};

namespace {

std::atomic<Mapping*> mappings{nullptr};
uintptr_t page_bytes = 4096;
struct sigaction before{};

std::mutex& mutex() {
  static std::mutex guard;
  return guard;
}

LostFile& told() {
  static LostFile first;
  return first;
}

// Async-signal-safe: atomics, mmap, sigaction.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  if (info->si_code == BUS_ADRERR) {
    const auto fault = reinterpret_cast<uintptr_t>(info->si_addr);
    for (Mapping* each = mappings.load(); each; each = each->next) {
      const uintptr_t begin = each->begin.load();
      const size_t bytes = each->bytes.load();
      if (begin == 0 || fault < begin || fault - begin >= bytes) continue;
      const uintptr_t page = fault / page_bytes * page_bytes;
      const uintptr_t end = (begin + bytes + page_bytes - 1) / page_bytes * page_bytes;
      void* zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
      if (zeros == MAP_FAILED) break;
      each->lost.store(true);
      errno = saved;
      return;
    }
  }
  // Not ours: the instruction runs again under whatever was installed before, which by default ends the process.
  ::sigaction(SIGBUS, &before, nullptr);
  if (info->si_code <= 0) ::raise(signal);
  errno = saved;
}

void install() {
  static const bool once = [] {
    page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before);
    return true;
  }();
  (void)once;
}

bool shorter(const Mapping& mapping) {
  struct stat facts{};
  return ::fstat(mapping.fd, &facts) == 0 && static_cast<size_t>(facts.st_size) < mapping.bytes.load();
}

LostFile describe(const Mapping& mapping) {
  return {mapping.path, shorter(mapping) ? "it was truncated while it was read" : "its file system failed to read it"};
}

}  // namespace

Mapping* note_mapping(void* address, size_t bytes, int fd, const std::string& path) {
  install();
  std::lock_guard lock(mutex());
  Mapping* mapping = mappings.load();
  while (mapping && mapping->begin.load() != 0) mapping = mapping->next;
  const bool fresh = !mapping;
  if (fresh) mapping = new Mapping;
  mapping->fd = fd;
  mapping->path = path;
  mapping->lost.store(false);
  mapping->bytes.store(bytes);
  mapping->begin.store(reinterpret_cast<uintptr_t>(address));
  if (fresh) {
    mapping->next = mappings.load();
    mappings.store(mapping);
  }
  return mapping;
}

void forget_mapping(Mapping* mapping) {
  std::lock_guard lock(mutex());
  if (mapping->lost.load() && told().path.empty()) told() = describe(*mapping);
  mapping->begin.store(0);
  ::close(mapping->fd);
  mapping->fd = -1;
}

LostFile lost_file() {
  std::lock_guard lock(mutex());
  if (!told().path.empty()) return told();
  for (Mapping* each = mappings.load(); each; each = each->next)
    // The rest of the last page reads as zeros without a fault.
    if (each->begin.load() != 0 && (each->lost.load() || shorter(*each))) return describe(*each);
  return {};
}

}  // namespace lpq::addon
