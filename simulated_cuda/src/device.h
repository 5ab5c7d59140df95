// The simulated CUDA device, which lives in host memory: what libsimgpu.so (core*.cpp) offers to
// the libraries that stand in for NVIDIA's.
//
// Unless it says otherwise, a function returns OK or an error. Error codes are the numbers that
// cudaError_t and CUresult share. Sizes are in bytes, times in nanoseconds of simulated time.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace simgpu {

enum : int {
  OK = 0,
  E_VALUE = 1,
  E_OOM = 2,
  E_CONFIGURATION = 9,
  E_SYMBOL = 13,
  E_NODEVICE = 100,
  E_DEVICE = 101,
  E_CONTEXT = 201,
  E_HANDLE = 400,
  E_NOTFOUND = 500,
  E_NOTREADY = 600,
  E_ILLEGAL = 700,
  E_ASSERT = 710,
  E_HOSTREG = 712,
  E_HOSTNOTREG = 713,
  E_NOTPERM = 800,
  E_UNSUPPORTED = 801,
  E_CAP_UNSUPPORTED = 900,
  E_CAP_INVALIDATED = 901,
  E_CAP_MERGE = 902,
  E_CAP_UNMATCHED = 903,
  E_CAP_UNJOINED = 904,
  E_CAP_ISOLATION = 905,
  E_CAP_IMPLICIT = 906,
  E_CAPTURED_EVENT = 907,
  E_CAP_THREAD = 908,
};
const char* error_name(int error);
const char* error_string(int error);

// ---- calls (core_calls.cpp)
// How often one entry point was called, and the failure that a test wants of it. Each entry point
// has a static one; they form a list.
struct ApiStat {
  const char* name;
  std::atomic<uint64_t> calls{0};
  std::atomic<int64_t> fail_after{-1};  // so many more calls succeed; negative: all of them
  std::atomic<int> fail_error{0};
  ApiStat* next;
  explicit ApiStat(const char* entry_point);
  int enter();  // counts a call; the injected error, or 0
};
// Says so once on stderr, and in the text of the E_UNSUPPORTED that it returns.
int unimplemented(const char* name);
const std::string& last_unimplemented();  // of this thread, and why where that is known

// ---- devices (core_devices.cpp) and their properties (core_properties.cpp)
// All devices of a process are of one kind; the environment says of which.
struct Config {
  int devices;  // that this process sees
  size_t memory;           // that it gives
  size_t reported_memory;  // that it says it has
  int cc_major, cc_minor;  // compute capability
  int multiprocessors, threads_per_sm, blocks_per_sm;
  int l2, shared_per_sm, shared_per_block, shared_reserved;
  std::string name;
  bool trace;  // SIMGPU_TRACE: say each call on stderr
};
const Config& config();
int current_device();  // of this thread
int set_device(int device);
// `attribute` is a DeviceAttribute; any other one is 0.
int device_attribute(int attribute, int device, int* out);
int occupancy(int block);        // blocks of so many threads that a multiprocessor holds at once
void touch_primary(int device);  // marks the primary context active
// What processes use of the physical devices, in the file of SIMGPU_SHARED or in one in memory with
// the name PUBLISHED (core_users.cpp). parent.py reads `most`, the most that all used at once.
constexpr int MAX_DEVICES = 32;  // environment.py has the same
constexpr char PUBLISHED[] = "simgpu-used";
struct UseOfProcess {
  int32_t process;
  uint64_t began;  // when it was started: a number may be another process's later
  uint64_t bytes[MAX_DEVICES];
};
struct UseTable {
  uint64_t most[MAX_DEVICES];
  UseOfProcess processes[128];
};
bool process_lives(const UseOfProcess& use);  // in core_users.cpp; not a zombie
bool primary_active(int device);
// Devices that exist. A device of CUDA is one of those that CUDA_VISIBLE_DEVICES shows.
int physical_devices();
int visible_devices();
int physical_device(int device);  // -1 when there is no such device
const char* device_name();
void device_uuid(int physical, unsigned char out[16]);
std::string device_uuid_text(int physical);  // GPU-73696d67-…, as the driver writes it

// CUdevice_attribute, which has the numbers of cudaDeviceAttr: those that are not 0 here. Memory is
// in bytes, clocks in kHz, the width of the bus in bits.
enum DeviceAttribute : int {
  MAX_THREADS_PER_BLOCK = 1,
  MAX_BLOCK_DIM_X = 2,
  MAX_BLOCK_DIM_Y = 3,
  MAX_BLOCK_DIM_Z = 4,
  MAX_GRID_DIM_X = 5,
  MAX_GRID_DIM_Y = 6,
  MAX_GRID_DIM_Z = 7,
  SHARED_MEMORY_PER_BLOCK = 8,
  TOTAL_CONSTANT_MEMORY = 9,
  WARP_SIZE = 10,
  MAX_PITCH = 11,
  REGISTERS_PER_BLOCK = 12,
  CLOCK_RATE = 13,
  TEXTURE_ALIGNMENT = 14,
  MULTIPROCESSOR_COUNT = 16,
  CONCURRENT_KERNELS = 31,
  PCI_DEVICE_ID = 34,
  MEMORY_CLOCK_RATE = 36,
  MEMORY_BUS_WIDTH = 37,
  L2_CACHE_SIZE = 38,
  MAX_THREADS_PER_MULTIPROCESSOR = 39,
  ASYNC_ENGINE_COUNT = 40,
  UNIFIED_ADDRESSING = 41,
  COMPUTE_CAPABILITY_MAJOR = 75,
  COMPUTE_CAPABILITY_MINOR = 76,
  STREAM_PRIORITIES_SUPPORTED = 78,
  SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
  REGISTERS_PER_MULTIPROCESSOR = 82,
  MANAGED_MEMORY = 83,
  COOPERATIVE_LAUNCH = 95,
  SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  HOST_REGISTER_SUPPORTED = 99,
  VIRTUAL_MEMORY_MANAGEMENT = 102,
  HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 103,
  MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
  RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
  MEMORY_POOLS_SUPPORTED = 115,
  CLUSTER_LAUNCH = 120,
  MULTICAST = 132,
};

// ---- memory (core_memory.cpp)
int mem_alloc(int device, size_t size, void** out);
int mem_free(void* pointer);
void mem_info(int device, size_t* free, size_t* total);
// Memory for another process (core_sharing.cpp), by a handle of so many bytes.
constexpr size_t HANDLE_BYTES = 64;
int share(void* pointer, void* handle);
int open_shared(int device, const void* handle, void** out);
int close_shared(void* pointer);
int host_alloc(size_t size, void** out);  // pinned memory
int host_free(void* pointer);
int host_register(void* pointer, size_t size);
int host_unregister(void* pointer);

// ---- virtual memory management (core_virtual_memory.cpp): cuMem*
// What a device hands out is a multiple of this, and begins at one.
constexpr size_t GRANULARITY = size_t(2) << 20;
int vmm_reserve(size_t size, size_t alignment, void** out);
int vmm_address_free(void* pointer, size_t size);
int vmm_create(int device, size_t size, uint64_t* handle);
// A multicast object, through which one kernel reaches the memory of several devices. It takes
// address space and no memory.
int vmm_multicast(size_t size, uint64_t* handle);
bool vmm_live(uint64_t handle);
// A file descriptor for another process, and the handle that it has there.
int vmm_export(uint64_t handle, int* descriptor);
int vmm_import(int descriptor, uint64_t* handle);
int vmm_release(uint64_t handle);
int vmm_map(void* pointer, size_t size, size_t offset, uint64_t handle);
int vmm_unmap(void* pointer, size_t size);
int vmm_access(void* pointer, size_t size, bool writable);
int vmm_retain(uint64_t* handle, void* pointer);
int vmm_handle_device(uint64_t handle, int* device);

// ---- what an address belongs to (core_addresses.cpp)
enum MemKind { MEM_NONE, MEM_DEVICE, MEM_HOST, MEM_VMM };
struct MemInfo {
  MemKind kind;
  int dev;
  uintptr_t base;
  size_t size;
  uint64_t id;  // no two allocations of a process share one
};
MemInfo mem_find(const void* pointer);
bool in_arena(const void* pointer);  // memory of cudaMalloc, which nothing aliases
bool is_device(const void* pointer);
bool host_allocated(const void* pointer, size_t size);  // pinned memory of ours, all of it
bool range_ok(const void* pointer, size_t size);        // what belongs to a device is all allocated

// ---- what memory holds (core_contents.cpp)
void contents_copy(void* dst, const void* src, size_t size);
void contents_set(void* dst, unsigned value, unsigned element_size, size_t count);
// Some bytes of a device.
struct Range {
  void* pointer = nullptr;
  size_t size = 0;
};
void contents_written(void* pointer, size_t size);  // by the host, or it may write there unseen
void contents_gone(void* pointer, size_t size);
void contents_fresh(void* pointer, size_t size);  // zeros, which nobody knows
bool contents_known(const void* pointer, size_t size);
// What may be written through a pointer: torch's block that it points into, or all that the program
// has allocated there itself.
Range contents_reachable(void* pointer);
// After a copy, and outside of all locks.
void note_host_read(void* dst, const void* src, size_t size);

// ---- memory pools (core_pool.cpp): cudaMallocAsync
struct Pool;
Pool* pool_default(int device);
Pool* pool_create(int device);
int pool_destroy(Pool* pool);
int pool_alloc(Pool* pool, size_t size, void** out);
int pool_free(void* pointer);  // E_VALUE when it is of no pool
int pool_trim(Pool* pool, size_t keep);
int pool_attribute(Pool* pool, int attribute, uint64_t* value, bool set);
void pools_synchronized();

// ---- kernels and values mode (core_kernels.cpp)
struct Kernel {
  std::string name;
  std::atomic<uint64_t> launched{0}, captured{0}, replayed{0};
  // Values mode: an implementation for the host, with the size of each argument. Python
  // (values/kernels.py) gives it at the first launch, found by the hash of the kernel's image.
  int (*run)(void** args, const unsigned* grid) = nullptr;
  std::vector<int> arg_sizes;
  // Without values: which of its parameters are pointers that it may write through, as far as that
  // can be told. Of Triton's kernels Python tells it, at the first launch as well.
  std::vector<int> writes;
  uint64_t image = 0;
  std::atomic<bool> pending{false};  // Python has not been asked yet
};
Kernel* kernel_by_name(const char* name);
// A new one each time: modules may hold different kernels of one name.
Kernel* kernel_of_module(const char* name, uint64_t image);
// A copy of a launch's arguments, 8 bytes for each; nullptr without an implementation.
std::shared_ptr<std::vector<char>> kernel_args(Kernel* kernel, void** params);
// What a launch may write to, after `kernel_args`.
std::vector<Range> kernel_overwrites(Kernel* kernel, void** params);
bool values_mode();
// Values mode, and no aten operator that computes its result itself is running.
bool compute_here();

// ---- work (core_work.cpp; `submit`: core_streams.cpp)
enum OpKind {
  OP_KERNEL,
  OP_MEMCPY,
  OP_MEMSET,
  OP_HOST,
  OP_CHILD,
  OP_EMPTY,
  OP_EVENT_WAIT,
  OP_EVENT_RECORD,
  OP_PYTHON,
};
// What an estimate of time needs of an operation, beside its bytes (core_log.cpp).
struct Work {
  uint64_t operation = 0;  // the profiler's number of what launched it
  // Of a matrix product: the type of its operands (cudaDataType) and its sizes.
  int type = -1;
  int64_t m = 0, n = 0, k = 0, batches = 0;
};
struct Node;
struct Event;
using NodeList = std::vector<std::shared_ptr<Node>>;
// One operation of a stream, or of a graph's node.
struct Op {
  OpKind kind = OP_EMPTY;
  // Copies and sets: `height` rows of `width` bytes, or of as many elements.
  void* dst = nullptr;
  const void* src = nullptr;
  size_t width = 0, height = 1, dpitch = 0, spitch = 0;
  unsigned value = 0, element_size = 1;
  // Kernels.
  Kernel* kernel = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  size_t shared_memory = 0;
  uint64_t cost_ns = 5000;
  std::shared_ptr<std::vector<char>> args;        // of a kernel with an implementation
  std::shared_ptr<std::function<int()>> compute;  // of a library's (cuBLAS), in values mode
  // Host functions.
  void (*host_function)(void*) = nullptr;
  void* user_data = nullptr;
  std::shared_ptr<NodeList> child;   // OP_CHILD: the nodes of a graph
  std::shared_ptr<uint64_t> python;  // OP_PYTHON: number of a Python function
  Event* event = nullptr;
  std::vector<Range> overwrites;  // what is no longer known once it is done
  Work work;
};
inline Op kernel_op(Kernel* kernel) {
  Op op;
  op.kind = OP_KERNEL;
  op.kernel = kernel;
  return op;
}
inline Op copy_op(void* dst, const void* src, size_t size) {
  Op op;
  op.kind = OP_MEMCPY;
  op.dst = dst;
  op.src = src;
  op.width = size;
  return op;
}
inline Op set_op(void* dst, unsigned value, unsigned element_size, size_t count) {
  Op op;
  op.kind = OP_MEMSET;
  op.dst = dst;
  op.value = value;
  op.element_size = element_size;
  op.width = count;
  return op;
}
inline Op host_op(void (*function)(void*), void* user_data) {
  Op op;
  op.kind = OP_HOST;
  op.host_function = function;
  op.user_data = user_data;
  return op;
}
int submit(void* stream, Op&& op);  // run it, or make it a node of the stream's capture

// ---- the log of work (core_log.cpp)
void operation_begins(uint64_t number);  // the profiler's, on this thread
uint64_t operation_ends();

// ---- streams (core_streams.cpp) and their capture (core_capture.cpp)
struct Capture;
struct Stream {
  int dev = 0;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool legacy = false;  // the default stream, with which blocking streams synchronise
  Capture* capture = nullptr;
  std::vector<Node*> deps;        // while capturing: what its next node comes after
  std::vector<Range> overwrites;  // and what its next node makes unknown
  uint64_t busy_until = 0;
};
constexpr unsigned STREAM_NON_BLOCKING = 1;
int stream_create(unsigned flags, int priority, Stream** out);
int stream_destroy(Stream* stream);
Stream* stream_resolve(void* handle);  // nullptr when the handle is not live
int stream_sync(void* stream);
int stream_query(void* stream);
int stream_wait(void* stream, Event* event, unsigned flags);
int device_sync();

enum { CAP_NONE = 0, CAP_ACTIVE = 1, CAP_INVALID = 2 };       // cudaStreamCaptureStatus
enum { MODE_GLOBAL = 0, MODE_THREAD = 1, MODE_RELAXED = 2 };  // cudaStreamCaptureMode
struct Graph;
int capture_begin(void* stream, int mode, Graph* into, Node** deps, size_t count);
int capture_end(void* stream, Graph** out);
int capture_info(void* stream, int* status, uint64_t* id, Graph** graph, Node*** deps,
                 size_t* count);
int capture_update(void* stream, Node** deps, size_t count, unsigned flags);
int capture_exchange_mode(int* mode);
int legacy_op_check();  // for synchronous copies and sets
int unsafe_check();     // for calls that capture modes may forbid

// ---- events (core_events.cpp)
struct Event {
  unsigned flags = 0;
  int dev = 0;
  bool recorded = false;
  uint64_t ready_at = 0;
  uint64_t capture_id = 0;  // of the capture that it was last recorded in
  std::vector<Node*> capture_deps;
};
constexpr unsigned EVENT_DISABLE_TIMING = 2;  // of event_create
constexpr unsigned EVENT_EXTERNAL = 1;        // of event_record and stream_wait: a node of its own
int event_create(unsigned flags, Event** out);
int event_destroy(Event* event);
int event_record(Event* event, void* stream, unsigned flags);
int event_query(Event* event);
int event_sync(Event* event);
int event_elapsed(float* milliseconds, Event* start, Event* end);

// ---- graphs (core_graphs.cpp)
struct Node {
  uint64_t id;
  Op op;
  std::vector<Node*> deps;
};
struct Graph {
  uint64_t id;
  NodeList nodes;  // in the order in which they were added, which is a topological one
};
struct GraphExec {
  uint64_t id;
  std::shared_ptr<NodeList> nodes;
  uint64_t launches = 0;
};
int graph_create(Graph** out);
int graph_destroy(Graph* graph);
bool graph_live(Graph* graph);
int graph_instantiate(Graph* graph, GraphExec** out);
int graph_exec_update(GraphExec* exec, Graph* graph);
int graph_exec_destroy(GraphExec* exec);
int graph_launch(GraphExec* exec, void* stream);
int graph_add(Graph* graph, Node** deps, size_t count, Op&& op, Node** out);
int graph_dot(Graph* graph, const char* path);
}  // namespace simgpu
