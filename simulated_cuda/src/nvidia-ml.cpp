// libnvidia-ml (NVML): the devices of the simulation as this process sees them. It counts the
// devices that exist, whatever CUDA_VISIBLE_DEVICES says, as NVML does. Used memory is that of the
// processes that share the devices (SIMGPU_SHARED), or of this one and those that it was started by:
// so a program sees its own memory in nvidia-smi.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>
#include "device.h"
using namespace simgpu;

namespace {
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
struct Device;  // a handle is the device's number plus one
int number(Device* h) { return (int)(uintptr_t)h - 1; }
Device* handle(int i) { return (Device*)(uintptr_t)(i + 1); }
bool exists(Device* h) { return number(h) >= 0 && number(h) < physical_devices(); }
int text(char* out, unsigned n, const char* s) {
  if (strlen(s) + 1 > n) return INSUFFICIENT_SIZE;
  strcpy(out, s);
  return SUCCESS;
}
struct User {
  int pid;
  size_t bytes;
};
// Those that a table says are on a device (see UseTable), of `only` if that is not 0.
void add_users(int table, int physical, int only, std::vector<User>& all) {
  UseTable uses;
  if (pread(table, &uses, sizeof uses, 0) != (ssize_t)sizeof uses) return;
  for (UseOfProcess& use : uses.processes) {
    if (!use.bytes[physical] || !process_lives(use)) continue;
    if (!only || use.process == only) all.push_back({use.process, use.bytes[physical]});
  }
}
// What a process that has its devices alone says of itself; a forked one has its parent's table.
void add_user(int pid, int physical, std::vector<User>& all) {
  std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  std::string file = std::string("/memfd:") + PUBLISHED + " (deleted)";
  DIR* entries = opendir(folder.c_str());
  if (!entries) return;
  while (dirent* entry = readdir(entries)) {
    char target[64];
    ssize_t n = readlink((folder + entry->d_name).c_str(), target, sizeof target);
    if (n < 0 || std::string(target, n) != file) continue;
    int table = open((folder + entry->d_name).c_str(), O_RDONLY | O_CLOEXEC);
    add_users(table, physical, pid, all);
    close(table);
  }
  closedir(entries);
}
int parent(int pid) {
  int found = 0;
  if (FILE* f = fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r")) {
    if (fscanf(f, "%*d (%*[^)]) %*c %d", &found) != 1) found = 0;
    fclose(f);
  }
  return found;
}
std::vector<User> users(int physical) {
  std::vector<User> all;
  // Never closed: that would let go of the lock that core_users.cpp holds on the same file.
  static const int table = [] {
    const char* shared = getenv("SIMGPU_SHARED");
    return shared && *shared ? open(shared, O_RDONLY | O_CLOEXEC) : -1;
  }();
  if (table >= 0) {
    add_users(table, physical, 0, all);
    return all;
  }
  for (int pid = getpid(); pid > 0; pid = parent(pid))
    add_user(pid, physical, all);
  return all;
}
struct Memory {
  unsigned long long total, free, used;
};
Memory memory(int physical) {
  Memory m{config().reported_memory, config().reported_memory, 0};
  for (User& user : users(physical)) {
    m.used += user.bytes;
    m.free -= user.bytes < m.free ? user.bytes : m.free;
  }
  return m;
}
struct Process {  // nvmlProcessInfo_t
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct Process1 {  // of version 1
  unsigned pid;
  unsigned long long used;
};
template <class P>
int processes(Device* h, unsigned* n, P* out) {
  if (!exists(h) || !n) return INVALID_ARGUMENT;
  auto all = users(number(h));
  unsigned room = out ? *n : 0;
  *n = (unsigned)all.size();
  if (room < all.size()) return INSUFFICIENT_SIZE;
  for (size_t i = 0; i < all.size(); i++) {
    out[i] = {};
    out[i].pid = (unsigned)all[i].pid;
    out[i].used = all[i].bytes;
    if constexpr (sizeof(P) > sizeof(Process1))
      out[i].gpu_instance = out[i].compute_instance = 0xffffffff;
  }
  return SUCCESS;
}
struct Pci {  // nvmlPciInfo_t
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
struct Rates {
  unsigned gpu, memory;
};
}  // namespace

#define API(name, ...) extern "C" int nvml##name(__VA_ARGS__)
#define DEVICE(name, ...) API(Device##name, Device* h, __VA_ARGS__)
API(Init) { return SUCCESS; }
API(Init_v2) { return SUCCESS; }
API(InitWithFlags, unsigned) { return SUCCESS; }
API(Shutdown) { return SUCCESS; }
extern "C" const char* nvmlErrorString(int e) {
  switch (e) {
    case SUCCESS: return "The operation was successful";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Unknown Error";
  }
}
API(SystemGetDriverVersion, char* s, unsigned n) { return text(s, n, "580.00"); }
API(SystemGetNVMLVersion, char* s, unsigned n) { return text(s, n, "13.580.00"); }
API(SystemGetCudaDriverVersion, int* v) {
  *v = 13000;
  return SUCCESS;
}
API(SystemGetCudaDriverVersion_v2, int* v) {
  *v = 13000;
  return SUCCESS;
}
API(SystemGetProcessName, unsigned pid, char* s, unsigned n) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%u/comm", pid);
  FILE* f = fopen(path, "r");
  if (!f) return NOT_FOUND;
  bool ok = fgets(s, (int)n, f);
  fclose(f);
  if (!ok) return NOT_FOUND;
  s[strcspn(s, "\n")] = 0;
  return SUCCESS;
}
API(DeviceGetCount, unsigned* n) {
  *n = physical_devices();
  return SUCCESS;
}
API(DeviceGetCount_v2, unsigned* n) {
  *n = physical_devices();
  return SUCCESS;
}
API(DeviceGetHandleByIndex, unsigned i, Device** h) {
  *h = handle(i);
  return exists(*h) ? SUCCESS : INVALID_ARGUMENT;
}
API(DeviceGetHandleByIndex_v2, unsigned i, Device** h) {
  *h = handle(i);
  return exists(*h) ? SUCCESS : INVALID_ARGUMENT;
}
API(DeviceGetHandleByPciBusId_v2, const char* s, Device** h) {
  unsigned domain, bus;
  if (sscanf(s, "%x:%x", &domain, &bus) != 2) return INVALID_ARGUMENT;
  *h = handle((int)bus - 1);
  return exists(*h) ? SUCCESS : NOT_FOUND;
}
API(DeviceGetHandleByUUID, const char* s, Device** h) {
  for (int i = 0; i < physical_devices(); i++) {
    if (device_uuid_text(i) == s) {
      *h = handle(i);
      return SUCCESS;
    }
  }
  return NOT_FOUND;
}
DEVICE(GetIndex, unsigned* i) {
  *i = number(h);
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetMinorNumber, unsigned* i) {
  *i = number(h);
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetName, char* s, unsigned n) {
  return exists(h) ? text(s, n, device_name()) : INVALID_ARGUMENT;
}
DEVICE(GetUUID, char* s, unsigned n) {
  return exists(h) ? text(s, n, device_uuid_text(number(h)).c_str()) : INVALID_ARGUMENT;
}
DEVICE(GetCudaComputeCapability, int* major, int* minor) {
  *major = config().cc_major;
  *minor = config().cc_minor;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetPciInfo_v3, Pci* p) {
  if (!exists(h)) return INVALID_ARGUMENT;
  memset(p, 0, sizeof *p);
  p->bus = number(h) + 1;
  snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", p->bus);
  snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", p->bus);
  return SUCCESS;
}
DEVICE(GetMemoryInfo, Memory* m) {
  if (!exists(h)) return INVALID_ARGUMENT;
  *m = memory(number(h));
  return SUCCESS;
}
DEVICE(GetMemoryInfo_v2, void* out) {
  struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
  } m{};
  if (!exists(h)) return INVALID_ARGUMENT;
  memcpy(&m.version, out, sizeof m.version);
  Memory v = memory(number(h));
  m.total = v.total;
  m.free = v.free;
  m.used = v.used;
  memcpy(out, &m, sizeof m);
  return SUCCESS;
}
DEVICE(GetComputeRunningProcesses, unsigned* n, Process1* out) { return processes(h, n, out); }
DEVICE(GetComputeRunningProcesses_v2, unsigned* n, Process* out) { return processes(h, n, out); }
DEVICE(GetComputeRunningProcesses_v3, unsigned* n, Process* out) { return processes(h, n, out); }
DEVICE(GetGraphicsRunningProcesses, unsigned* n, void*) {
  *n = 0;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetGraphicsRunningProcesses_v2, unsigned* n, void*) {
  *n = 0;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetGraphicsRunningProcesses_v3, unsigned* n, void*) {
  *n = 0;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
// Nothing runs and nothing gets warm: an idle device at room temperature.
DEVICE(GetUtilizationRates, Rates* r) {
  *r = {0, 0};
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetTemperature, int, unsigned* celsius) {
  *celsius = 25;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetTemperatureV, void* t) {
  int v[3];
  memcpy(v, t, sizeof v);
  v[2] = 25;
  memcpy(t, v, sizeof v);
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetPowerUsage, unsigned* milliwatts) {
  *milliwatts = 0;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetClockInfo, int, unsigned* mhz) {
  *mhz = 1980;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetClock, int, int, unsigned* mhz) {
  *mhz = 1980;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetP2PStatus, Device*, int, int* status) {
  *status = 0;
  return exists(h) ? SUCCESS : INVALID_ARGUMENT;
}
DEVICE(GetNvLinkRemoteDeviceType, unsigned, int*) { return NOT_SUPPORTED; }
DEVICE(GetNvLinkRemotePciInfo_v2, unsigned, void*) { return NOT_SUPPORTED; }
DEVICE(GetNvLinkState, unsigned, int* on) {
  *on = 0;
  return SUCCESS;
}
// Leaves the state as it finds it, which torch 2.13 sets to "not supported" before it asks whether
// segments can be shared by fabric.
DEVICE(GetGpuFabricInfoV, void*) { return SUCCESS; }
DEVICE(GetMigMode, unsigned*, unsigned*) { return NOT_SUPPORTED; }
