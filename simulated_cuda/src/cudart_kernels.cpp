// libcudart: kernels. Registration, which nvcc writes into a program, gives them names; launching
// only counts.
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <mutex>
#include <string>
#include <unordered_map>
#include "fat_binary.h"
#include "runtime.h"
using namespace simgpu;
using namespace simgpu::runtime;

namespace {
// A function of the program, by its address on the host.
struct Function {
  const char* name = "<unregistered>";
  void** module = nullptr;   // a handle of __cudaRegisterFatBinary
  Kernel* kernel = nullptr;  // once it was launched
};
// A __device__ variable of the program, by its address on the host.
struct Variable {
  size_t size;
  void* memory;  // host memory: variables of modules are no part of the simulated memory
};
std::mutex& registry_lock() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::unordered_map<const void*, Function>& functions() {
  static auto* registered = new std::unordered_map<const void*, Function>;
  return *registered;
}
std::unordered_map<const void*, Variable>& variables() {
  static auto* registered = new std::unordered_map<const void*, Variable>;
  return *registered;
}
#define REGISTRY_LOCK std::lock_guard<std::mutex> lock_(registry_lock())

// Which parameters of a kernel are pointers that it may write through, by its name as it is
// mangled: those to what is not const. Pointers inside of structures are not seen.
std::vector<int> written_parameters(const char* mangled) {
  std::vector<int> found;
  int status = 0;
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string text = demangled ? demangled : "";
  free(demangled);
  if (text.empty() || text.back() != ')') return found;
  // From the end to the bracket in which the parameters begin.
  std::vector<std::string> parameters(1);
  int depth = 0;
  for (size_t i = text.size() - 1; i--;) {
    char c = text[i];
    depth += !!strchr(")>]}", c) - !!strchr("(<[{", c);
    if (depth < 0) break;
    if (c == ',' && !depth)
      parameters.emplace_back();
    else
      parameters.back().insert(0, 1, c);
  }
  for (size_t i = 0; i < parameters.size(); i++) {
    auto& type = parameters[parameters.size() - 1 - i];
    constexpr char CONST[] = "const*";
    bool reads = type.size() > strlen(CONST) &&
                 !type.compare(type.size() - strlen(CONST), strlen(CONST), CONST);
    if (!type.empty() && type.back() == '*' && !reads) found.push_back((int)i);
  }
  return found;
}

// Of torch's own kernels it is known by operator what they write (integers.py).
bool is_torch(const void* host) {
  Dl_info library;
  return dladdr(host, &library) && library.dli_fname && strstr(library.dli_fname, "libtorch");
}

Kernel* kernel_of(const void* host) {
  REGISTRY_LOCK;
  Function& function = functions()[host];
  if (!function.kernel) {
    function.kernel = kernel_by_name(function.name);
    if (!is_torch(host)) function.kernel->writes = written_parameters(function.name);
  }
  return function.kernel;
}
}  // namespace

// ---- registration
extern "C" void** __cudaRegisterFatBinary(void* b) { return new void*(b); }
extern "C" void __cudaRegisterFatBinaryEnd(void**) {}
extern "C" void __cudaUnregisterFatBinary(void**) {}
extern "C" char __cudaInitModule(void**) { return 1; }
extern "C" void __cudaRegisterFunction(void** module, const char* host, char*, const char* name,
                                       int, uint3*, uint3*, dim3*, dim3*, int*) {
  REGISTRY_LOCK;
  Function& function = functions()[host];
  function.name = name;
  function.module = module;
}
extern "C" void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int,
                                  int) {
  REGISTRY_LOCK;
  variables()[host] = {size, nullptr};
}
extern "C" void __cudaRegisterManagedVar(void**, void** host, char*, const char*, int, size_t size,
                                         int, int) {
  *host = calloc(1, size);
}

// ---- launches
// What stands between <<< and >>>: pushed before the arguments are evaluated, popped by the launch.
struct LaunchConfiguration {
  dim3 grid, block;
  size_t shared_memory;
  void* stream;
};
constexpr int MAX_NESTED = 8;
static thread_local LaunchConfiguration tl_pushed[MAX_NESTED];
static thread_local int tl_pushed_count = 0;
extern "C" unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t sh, struct CUstream_st* s) {
  if (tl_pushed_count < MAX_NESTED) tl_pushed[tl_pushed_count++] = {g, b, sh, s};
  return 0;
}
API(__cudaPopCallConfiguration, dim3* g, dim3* b, size_t* sh, void* s) {
  if (!tl_pushed_count) return ret(E_VALUE);
  LaunchConfiguration& popped = tl_pushed[--tl_pushed_count];
  *g = popped.grid;
  *b = popped.block;
  *sh = popped.shared_memory;
  *(void**)s = popped.stream;
  return cudaSuccess;
}
static int launch(Kernel* k, dim3 g, dim3 b, size_t sh, void* s, void** args) {
  if (!g.x || !g.y || !g.z || !b.x || !b.y || !b.z || (size_t)b.x * b.y * b.z > 1024)
    return E_CONFIGURATION;
  Op op = kernel_op(k);
  op.shared_memory = sh;
  // torch.cuda._sleep: its argument is a number of cycles, at 2 GHz.
  if (args && k->name.find("spin_kernel") != std::string::npos) op.cost_ns = *(int64_t*)args[0] / 2;
  op.grid[0] = g.x;
  op.grid[1] = g.y;
  op.grid[2] = g.z;
  op.block[0] = b.x;
  op.block[1] = b.y;
  op.block[2] = b.z;
  op.overwrites = kernel_overwrites(k, args);
  return submit(s, std::move(op));
}
API(cudaLaunchKernel, const void* f, dim3 g, dim3 b, void** a, size_t sh, cudaStream_t s) {
  ENTER(cudaLaunchKernel);
  return ret(launch(kernel_of(f), g, b, sh, s, a));
}
API(cudaLaunchCooperativeKernel, const void* f, dim3 g, dim3 b, void** a, size_t sh,
    cudaStream_t s) {
  ENTER(cudaLaunchCooperativeKernel);
  return ret(launch(kernel_of(f), g, b, sh, s, a));
}
API(cudaLaunchKernelExC, const cudaLaunchConfig_t* c, const void* f, void** a) {
  ENTER(cudaLaunchKernelExC);
  return ret(launch(kernel_of(f), c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream, a));
}
API(__cudaGetKernel, cudaKernel_t* k, const void* f) {
  *k = (cudaKernel_t)kernel_of(f);
  return cudaSuccess;
}
API(__cudaLaunchKernel, cudaKernel_t k, dim3 g, dim3 b, void** a, size_t sh, cudaStream_t s) {
  ENTER(__cudaLaunchKernel);
  return ret(launch((Kernel*)k, g, b, sh, s, a));
}

// ---- properties of functions, and variables
API(cudaFuncGetAttributes, struct cudaFuncAttributes* a, const void* f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->maxDynamicSharedSizeBytes = 48 << 10;
  // CUB takes its tuning by ptxVersion and refuses one that it was not compiled for.
  REGISTRY_LOCK;
  auto it = functions().find(f);
  bool known = it != functions().end() && it->second.module;
  auto image = fat_binary::chosen(known ? *it->second.module : nullptr,
                                  config().cc_major * 10 + config().cc_minor);
  a->binaryVersion = image.binary;
  a->ptxVersion = image.ptx;
  return cudaSuccess;
}
API(cudaFuncSetAttribute, const void*, enum cudaFuncAttribute, int) { return cudaSuccess; }
API(cudaFuncSetCacheConfig, const void*, enum cudaFuncCache) { return cudaSuccess; }
API(cudaOccupancyMaxActiveBlocksPerMultiprocessor, int* n, const void*, int b, size_t) {
  *n = occupancy(b);
  return cudaSuccess;
}
API(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int* n, const void*, int b, size_t,
    unsigned) {
  *n = occupancy(b);
  return cudaSuccess;
}
API(cudaGetSymbolAddress, void** p, const void* sym) {
  REGISTRY_LOCK;
  auto it = variables().find(sym);
  if (it == variables().end()) return ret(E_SYMBOL);
  Variable& variable = it->second;
  if (!variable.memory) variable.memory = calloc(1, variable.size);
  *p = variable.memory;
  return cudaSuccess;
}
API(cudaMemcpyToSymbol, const void* sym, const void* src, size_t n, size_t off,
    enum cudaMemcpyKind) {
  void* p;
  if (cudaError_t e = cudaGetSymbolAddress(&p, sym)) return e;
  memcpy((char*)p + off, src, n);
  return cudaSuccess;
}
API(cudaProfilerStart, void) {
  ENTER(cudaProfilerStart);
  return cudaSuccess;
}
API(cudaProfilerStop, void) {
  ENTER(cudaProfilerStop);
  return cudaSuccess;
}
