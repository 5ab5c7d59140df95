// The log of work: what streams were given, for an estimate of the time that a device takes for it.
//
// Note [The log of work]
// While it is on, each operation that a stream is given is a record, and so is each node of a graph
// that is launched, after a record of the launch. A record says which operation of the profiler was
// running on the thread that submitted it: Kineto tells CUPTI as one begins and ends, so that what
// it knows of shapes joins without clocks. A node keeps the operation of its capture.
#include <ctime>
#include "core.h"

namespace simgpu {
namespace {
// control.py has the same.
struct Record {
  uint64_t at;         // ns of CLOCK_MONOTONIC, as the host submitted it
  uint64_t operation;  // 0 where there was none
  uint64_t stream;     // 0 is the default stream
  uint64_t subject;    // an event, or a graph's node, by its address; else 0
  uint64_t bytes;      // of copies and sets; of a kernel, the threads of a block
  int64_t m, n, k, batches;  // of a product; m, n and k of another kernel are its grid
  const char* name;  // of a kernel
  int32_t kind;      // OpKind or LogKind
  int32_t type;      // of a product's operands; of a copy: 1 from a device, 2 to one, 3 both
};

std::atomic<bool> g_logging{false};
std::atomic<uint64_t> g_first_operation{0};

struct Log {
  std::vector<Record> records;
  std::vector<uint64_t> edges;  // pairs: a node, and one that it comes after
  std::set<std::string> names;  // a kernel may be gone before it is read
};
Log& the_log() {
  static auto* log = new Log;
  return *log;
}

std::vector<uint64_t>& operations() {
  static thread_local auto* numbers = new std::vector<uint64_t>;
  return *numbers;
}

Record record_of(uint64_t stream, int kind) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  Record record = {};
  record.at = (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
  record.stream = stream;
  record.kind = kind;
  return record;
}

Record record_of(uint64_t stream, const Op& op) {
  Record record = record_of(stream, op.kind);
  record.operation = op.work.operation;
  record.type = op.work.type;
  record.m = op.work.m;
  record.n = op.work.n;
  record.k = op.work.k;
  record.batches = op.work.batches;
  if (op.kernel) record.name = the_log().names.insert(op.kernel->name).first->c_str();
  if (op.kind == OP_KERNEL && !record.batches) {
    record.m = op.grid[0], record.n = op.grid[1], record.k = op.grid[2];
    record.bytes = (uint64_t)op.block[0] * op.block[1] * op.block[2];
  }
  if (op.kind == OP_MEMCPY || op.kind == OP_MEMSET)
    record.bytes = op.width * op.height * op.element_size;
  if (op.kind == OP_MEMCPY) record.type = is_device(op.src) + 2 * is_device(op.dst);
  return record;
}

void log_nodes(uint64_t stream, const NodeList& nodes) {
  for (auto& node : nodes) {
    if (node->op.kind == OP_CHILD) log_nodes(stream, *node->op.child);
    Record record = record_of(stream, node->op);
    record.subject = (uint64_t)node.get();
    the_log().records.push_back(record);
    for (auto* before : node->deps)
      the_log().edges.insert(the_log().edges.end(), {record.subject, (uint64_t)before});
  }
}
}  // namespace

void operation_begins(uint64_t number) { operations().push_back(g_first_operation + number); }
uint64_t operation_ends() {
  if (operations().empty()) return 0;
  uint64_t last = operations().back();
  operations().pop_back();
  return last - g_first_operation;
}
uint64_t this_operation() { return operations().empty() ? 0 : operations().back(); }

bool logging() { return g_logging; }
void log_op(const Stream* stream, const Op& op) {
  if (logging()) the_log().records.push_back(record_of(stream->id, op));
}
void log_event(LogKind kind, const Stream* stream, const Event* event) {
  if (!logging()) return;
  Record record = record_of(stream->id, kind);
  record.subject = (uint64_t)event;
  the_log().records.push_back(record);
}
void log_graph(const Stream* stream, const NodeList& nodes) {
  if (!logging()) return;
  auto& records = the_log().records;
  size_t launch = records.size();
  records.push_back(record_of(stream->id, LOG_GRAPH));
  log_nodes(stream->id, nodes);
  records[launch].m = records.size() - launch - 1;
}
}  // namespace simgpu

using namespace simgpu;

// Begins an empty log, or ends it; what it holds stays until the next begins.
extern "C" void simgpu_log(int on) {
  LOCK;
  if (on) {
    the_log().records.clear();
    the_log().edges.clear();
  }
  g_logging = on;
}
extern "C" void simgpu_number_operations(uint64_t first) { g_first_operation = first; }
extern "C" const void* simgpu_log_records(size_t* count) {
  LOCK;
  *count = the_log().records.size();
  return the_log().records.data();
}
extern "C" const uint64_t* simgpu_log_edges(size_t* count) {
  LOCK;
  *count = the_log().edges.size();
  return the_log().edges.data();
}
