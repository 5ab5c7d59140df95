// What the parts of libsimgpu.so share with one another, and with no other library.
//
// Note [State that is never destroyed]
// Everything that a process keeps is made at its first use and leaked on purpose: torch's libraries
// still call in while the process ends, after destructors of static objects have run.
#pragma once
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>
#include "device.h"

namespace simgpu {

// The one lock of the device's state. It is recursive, as its functions call one another.
inline std::recursive_mutex& device_lock() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}
#define LOCK std::lock_guard<std::recursive_mutex> lock_(device_lock())

long environment_number(const char* name, long otherwise);  // 0 for what is no number
// A text for Python's ctypes: as much of it as fits. Returns the number of bytes that all of it
// takes.
size_t fill(char* buffer, size_t size, const std::string& text);

// Of a map from first addresses: the entry that begins last among those up to an address, or end().
template <class Map>
typename Map::iterator last_up_to(Map& map, uintptr_t address) {
  auto next = map.upper_bound(address);
  return next == map.begin() ? map.end() : std::prev(next);
}

// ---- calls (core_calls.cpp)
extern std::atomic<ApiStat*> g_stats;  // the head of the list of entry points

// ---- processes on a device (core_users.cpp)
size_t used_by_others(int physical);
// Says that this process uses so many bytes; false where there is no room for them.
bool use(int physical, size_t bytes);

// ---- memory (core_memory.cpp)
// The memory of one device that cudaMalloc hands out, in multiples of GRANULARITY.
struct Arena {
  uintptr_t base = 0;
  size_t used = 0;  // by whatever takes of this device's memory
  int physical = 0;
  std::map<uintptr_t, size_t> live, holes;  // address -> size
  bool take(size_t size) {
    if (!use(physical, used + size)) return false;
    used += size;
    return true;
  }
  void give_back(size_t size) { use(physical, used -= size); }
};
Arena* arena(int device);
// Addresses alone, which cost no memory of the device: nullptr where there is no hole. Sizes are
// multiples of GRANULARITY.
void* address_take(Arena* from, size_t size);
void address_give_back(Arena* to, std::map<uintptr_t, size_t>::iterator block);
// Address space is larger than memory, so that fragmentation of addresses is no lack of memory.
constexpr size_t ADDRESS_SPACE_FACTOR = 4;

struct HostBlock {
  size_t size;
  uint64_t id;
  bool own;  // allocated here; otherwise registered
};
std::map<uintptr_t, HostBlock>& host_blocks();
std::map<uintptr_t, uint64_t>& device_allocation_ids();  // by first address
uint64_t next_allocation_id();
extern std::atomic<uint64_t> g_memory_generation;  // changes when memory goes away

// ---- virtual memory management (core_virtual_memory.cpp)
struct PhysicalMemory {
  size_t size;
  int file;
  size_t offset;  // in the file
  int references;
  int dev;
  size_t taken;  // of the device's memory; nothing of what is another process's
};
struct Mapping {
  size_t size;
  uint64_t handle;  // of physical memory
};
std::map<uintptr_t, size_t>& vmm_reservations();
std::map<uintptr_t, Mapping>& vmm_mappings();
std::map<uint64_t, PhysicalMemory>& vmm_physical();

// ---- kernels and values mode (core_kernels.cpp)
std::unordered_map<std::string, std::unique_ptr<Kernel>>& named_kernels();
std::vector<Kernel*>& module_kernels();
int run_kernel(const Op& op);
int run_python(const Op& op, bool replay);

// ---- work (core_work.cpp): see Note [Simulated time]
extern std::atomic<uint64_t> g_host_clock;
constexpr uint64_t POLL_NS = 1000;  // what a question whether something is ready takes
bool async_mode();
void host_reach(uint64_t time);
uint64_t cost(const Op& op);
void busy(Stream* stream, uint64_t nanoseconds);
int execute(const Op& op, bool replay);
int execute_nodes(const NodeList& nodes);

// ---- the log of work (core_log.cpp)
// What else than an OpKind a record may be of.
enum LogKind { LOG_EVENT = 100, LOG_WAIT, LOG_GRAPH };
uint64_t this_operation();
bool logging();
void log_op(const Stream* stream, const Op& op);
void log_event(LogKind kind, const Stream* stream, const Event* event);
void log_graph(const Stream* stream, const NodeList& nodes);

// ---- handles: what exists of each kind, in the order of control.py
enum HandleKind { L_STREAM, L_EVENT, L_GRAPH, L_EXEC, HANDLE_KINDS };
std::unordered_set<void*>& live(int kind);
uint64_t next_handle_id();

// ---- streams and captures
Stream* legacy_stream(int device);
struct Capture {
  uint64_t id;
  int status;
  int mode;
  std::thread::id owner;
  Graph* graph;
  bool own_graph;  // made for this capture, rather than given by the caller
  Stream* origin;
  std::vector<Stream*> streams;
};
std::vector<Capture*>& captures();  // those under way
Capture* capture_by_id(uint64_t id);
void invalidate(Capture* capture);
int invalidate(Capture* capture, int error);  // returns the error
// A capture that work on the legacy stream would wait for, as one of its streams is blocking.
Capture* capture_of_blocking_stream();

// Whether the stream is being captured: then the range goes to its next node.
bool overwritten_in_capture(void* stream, Range range);

// ---- graphs
Node* add_node(Graph* graph, const std::vector<Node*>& deps, Op&& op);
}  // namespace simgpu
