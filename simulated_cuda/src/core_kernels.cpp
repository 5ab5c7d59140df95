// Kernels by name and by module, and values mode: their implementations for the host come from
// Python, as do operations that are Python functions (values/).
#include <algorithm>
#include <cstring>
#include "core.h"

namespace simgpu {
namespace {
using Resolver = void (*)(Kernel* kernel, const char* name, uint64_t image);
using PythonCall = int (*)(uint64_t function, int replay);
std::atomic<Resolver> g_resolver{nullptr};
std::atomic<PythonCall> g_python{nullptr};
thread_local int tl_inside = 0;  // an aten operator that computes its result itself is running

// Python functions that nothing can call any more.
std::vector<uint64_t>& dropped() {
  static auto* functions = new std::vector<uint64_t>;
  return *functions;
}
}  // namespace

std::unordered_map<std::string, std::unique_ptr<Kernel>>& named_kernels() {
  static auto* kernels = new std::unordered_map<std::string, std::unique_ptr<Kernel>>;
  return *kernels;
}
std::vector<Kernel*>& module_kernels() {
  static auto* kernels = new std::vector<Kernel*>;
  return *kernels;
}

Kernel* kernel_by_name(const char* name) {
  LOCK;
  auto& kernel = named_kernels()[name];
  if (!kernel) {
    kernel.reset(new Kernel);
    kernel->name = name;
  }
  return kernel.get();
}

Kernel* kernel_of_module(const char* name, uint64_t image) {
  LOCK;
  auto* kernel = new Kernel;
  kernel->name = name;
  kernel->image = image;
  kernel->pending = true;
  module_kernels().push_back(kernel);
  return kernel;
}

bool values_mode() { return g_python.load(); }
bool compute_here() { return values_mode() && !tl_inside; }

std::shared_ptr<std::vector<char>> kernel_args(Kernel* kernel, void** params) {
  // Within an aten operator that computes its result itself, its own kernels (jiterator) need none.
  if (auto resolve = g_resolver.load())
    if (!tl_inside && kernel->pending.exchange(false))
      resolve(kernel, kernel->name.c_str(), kernel->image);
  if (!kernel->run || !params) return nullptr;
  const auto& sizes = kernel->arg_sizes;
  auto args = std::make_shared<std::vector<char>>(sizes.size() * 8);
  for (size_t i = 0; i < sizes.size(); i++)
    memcpy(args->data() + 8 * i, params[i], sizes[i]);
  return args;
}

std::vector<Range> kernel_overwrites(Kernel* kernel, void** params) {
  std::vector<Range> ranges;
  if (params && !values_mode())
    for (int i : kernel->writes)
      ranges.push_back(contents_reachable(*(void**)params[i]));
  return ranges;
}

int run_kernel(const Op& op) {
  std::vector<void*> params;
  for (size_t i = 0; i < op.kernel->arg_sizes.size(); i++)
    params.push_back(op.args->data() + 8 * i);
  return op.kernel->run(params.data(), op.grid);
}

int run_python(const Op& op, bool replay) {
  auto call = g_python.load();
  return call ? call(*op.python, replay) : OK;
}
}  // namespace simgpu

using namespace simgpu;

// Turns values mode on: the resolver binds an implementation to a kernel, if there is one. Without a
// function for Python's operations it stays off, and the resolver tells what a kernel writes to.
extern "C" void simgpu_values(Resolver resolver, PythonCall python) {
  g_resolver = resolver;
  g_python = python;
}

// The hash (FNV-1a, 64 bits) of an ELF image in memory, whose length its header tells: whichever of
// the tables of program and section headers ends last. 0 for anything else.
extern "C" uint64_t simgpu_image_hash(const void* image) {
  auto* bytes = (const unsigned char*)image;
  if (!bytes || memcmp(bytes, "\177ELF", 4)) return 0;
  uint64_t programs, sections;
  uint16_t program_size, program_count, section_size, section_count;
  memcpy(&programs, bytes + 32, 8);
  memcpy(&sections, bytes + 40, 8);
  memcpy(&program_size, bytes + 54, 2);
  memcpy(&program_count, bytes + 56, 2);
  memcpy(&section_size, bytes + 58, 2);
  memcpy(&section_count, bytes + 60, 2);
  uint64_t length = std::max<uint64_t>(programs + program_size * program_count,
                                       sections + section_size * section_count);
  uint64_t hash = 14695981039346656037ull;
  for (uint64_t i = 0; i < length; i++)
    hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

extern "C" void simgpu_bind(Kernel* kernel, int (*run)(void**, const unsigned*), const int* sizes,
                            int count) {
  kernel->arg_sizes.assign(sizes, sizes + count);
  kernel->run = run;
}

extern "C" void simgpu_bind_writes(Kernel* kernel, const int* parameters, int count) {
  kernel->writes.assign(parameters, parameters + count);
}

extern "C" void simgpu_inside(int on) { tl_inside = on; }

// The number of the capture that a stream is in, or 0.
extern "C" uint64_t simgpu_capture_id(void* stream) {
  int status = CAP_NONE;
  uint64_t id = 0;
  capture_info(stream, &status, &id, nullptr, nullptr, nullptr);
  return status != CAP_NONE ? id : 0;
}

// A Python function becomes an operation of the stream, or a graph node; its number is in
// simgpu_dropped() once nothing can call it again.
extern "C" int simgpu_submit_python(void* stream, uint64_t function) {
  Op op;
  op.kind = OP_PYTHON;
  op.python = std::shared_ptr<uint64_t>(new uint64_t(function), [](uint64_t* number) {
    LOCK;
    dropped().push_back(*number);
    delete number;
  });
  return submit(stream, std::move(op));
}

// Moves up to `room` numbers of functions to `out`, and returns how many.
extern "C" size_t simgpu_dropped(uint64_t* out, size_t room) {
  LOCK;
  size_t count = 0;
  while (count < room && !dropped().empty()) {
    out[count++] = dropped().back();
    dropped().pop_back();
  }
  return count;
}
