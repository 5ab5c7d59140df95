// What each process uses of each device, for all that are on it. They share a file, whose path is
// in SIMGPU_SHARED: what one takes, the others have not, as on a real device. Without it a process
// has its devices alone, and its table is a file in memory that nvidia-smi finds in /proc.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include "core.h"

namespace simgpu {
namespace {
int open_table() {
  const char* path = getenv("SIMGPU_SHARED");
  int file = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  return file >= 0 ? file : memfd_create(PUBLISHED, MFD_CLOEXEC);
}
int g_file = -1;
UseTable* table() {
  static UseTable* mapped = [] {
    g_file = open_table();
    bool ok = g_file >= 0 && !ftruncate(g_file, sizeof(UseTable));
    constexpr int BOTH = PROT_READ | PROT_WRITE;
    void* at = ok ? mmap(nullptr, sizeof(UseTable), BOTH, MAP_SHARED, g_file, 0) : MAP_FAILED;
    return at == MAP_FAILED ? new UseTable{} : (UseTable*)at;
  }();
  return mapped;
}

// Holds off other processes: the kernel lets go of the lock if this one dies.
struct ProcessLock {
  ProcessLock() {
    while (g_file >= 0 && lockf(g_file, F_LOCK, 0) && errno == EINTR) {
    }
  }
  ~ProcessLock() {
    if (g_file >= 0 && lockf(g_file, F_ULOCK, 0)) return;
  }
};

// A process that has ended and that nobody waits for can still be signalled; its memory is gone.
bool ended(int process) {
  char path[32], state = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  FILE* file = fopen(path, "r");
  if (!file) return true;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
  fclose(file);
  return state == 'Z' || state == 'X';
}

bool alive(const UseOfProcess& use) { return use.process && process_lives(use.process); }

// This process's own entry, or one of a process that has died; a forked process gets its own. With
// no entry left it is not seen by others.
UseOfProcess* own_entry() {
  UseOfProcess* unused = nullptr;
  for (UseOfProcess& use : table()->processes) {
    if (use.process == getpid()) return &use;
    if (!unused && !alive(use)) unused = &use;
  }
  if (unused) {
    *unused = {};
    unused->process = getpid();
  }
  return unused;
}

size_t of_others(int physical) {
  size_t bytes = 0;
  for (const UseOfProcess& use : table()->processes)
    if (use.process != getpid() && alive(use)) bytes += use.bytes[physical];
  return bytes;
}
}  // namespace

bool process_lives(int process) {
  return process == getpid() || (!kill(process, 0) && !ended(process));
}

size_t used_by_others(int physical) {
  table();
  ProcessLock lock;
  return of_others(physical);
}

bool use(int physical, size_t bytes) {
  table();
  ProcessLock lock;
  size_t others = of_others(physical);
  UseOfProcess* own = own_entry();
  bool grows = !own || bytes > own->bytes[physical];
  if (grows && others + bytes > config().memory) return false;
  if (own) own->bytes[physical] = bytes;
  uint64_t& most = table()->most[physical];
  most = std::max<uint64_t>(most, others + bytes);
  return true;
}
}  // namespace simgpu
