// What each process uses of each device, for all that are on it. They share a file, whose path is
// in SIMGPU_SHARED: what one takes, the others have not, as on a real device. Without it a process
// has its devices alone, and its table is a file in memory that nvidia-smi finds in /proc.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
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

// When a process began, in ticks of the kernel's clock; 0 for one that has ended, be it that nobody
// has waited for it: it can still be signalled, and its memory is gone. Its name may have brackets.
uint64_t began(int process) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t n = read(file, text, sizeof text - 1);  // fails if it ends meanwhile
  close(file);
  text[std::max<ssize_t>(n, 0)] = 0;
  const char* after = strrchr(text, ')');
  char state = 0;
  unsigned long long ticks = 0;
  constexpr char FIELDS[] =
      ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu";
  if (!after || sscanf(after, FIELDS, &state, &ticks) != 2) return 0;
  return state == 'Z' || state == 'X' ? 0 : ticks;
}

// Of this process, and of what is forked from it.
uint64_t own_beginning() {
  static int process = 0;
  static uint64_t ticks = 0;
  if (process != getpid()) {
    process = getpid();
    ticks = began(process);
  }
  return ticks;
}

bool own(const UseOfProcess& use) {
  return use.process == getpid() && use.began == own_beginning();
}

// This process's own entry, or one of a process that has died; a forked process gets its own. With
// no entry left it is not seen by others.
UseOfProcess* own_entry() {
  UseOfProcess* unused = nullptr;
  for (UseOfProcess& use : table()->processes) {
    if (own(use)) return &use;
    if (!unused && !process_lives(use)) unused = &use;
  }
  if (unused) {
    *unused = {getpid(), own_beginning(), {}};
  }
  return unused;
}

size_t of_others(int physical) {
  size_t bytes = 0;
  for (const UseOfProcess& use : table()->processes)
    if (!own(use) && process_lives(use)) bytes += use.bytes[physical];
  return bytes;
}

// A program that takes the place of another one (exec) has nothing of a device that this one had.
__attribute__((constructor)) void forget_before_exec() {
  const char* path = getenv("SIMGPU_SHARED");
  int file = path && *path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  UseTable uses;
  if (file >= 0 && pread(file, &uses, sizeof uses, 0) == (ssize_t)sizeof uses)
    for (const UseOfProcess& use : uses.processes)
      if (own(use)) {
        const UseOfProcess nothing{};
        if (pwrite(file, &nothing, sizeof use, (char*)&use - (char*)&uses) < 0) break;
      }
  if (file >= 0) close(file);
}
}  // namespace

bool process_lives(const UseOfProcess& use) {
  return use.process && use.began == began(use.process);
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
