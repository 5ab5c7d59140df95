// What a device is: its properties, all of them from the environment (environment.py writes it;
// what nobody says is an H100's).
#include <algorithm>
#include <cstdlib>
#include "core.h"

namespace simgpu {
long environment_number(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

const char* device_name() {
  const char* name = getenv("SIMGPU_NAME");
  return name && *name ? name : "Simulated GPU";
}

static Config read_config() {
  Config result;
  result.devices = visible_devices();
  long memory = environment_number("SIMGPU_MEM_MB", 81920) << 20;
  result.memory = (size_t)environment_number("SIMGPU_MEM_BYTES", memory);
  result.reported_memory = (size_t)environment_number("SIMGPU_REPORTED_BYTES", (long)result.memory);
  long capability = environment_number("SIMGPU_CC", 90);
  result.cc_major = capability / 10;
  result.cc_minor = capability % 10;
  result.multiprocessors = (int)environment_number("SIMGPU_SMS", 132);
  result.threads_per_sm = (int)environment_number("SIMGPU_THREADS_PER_SM", 2048);
  result.blocks_per_sm = (int)environment_number("SIMGPU_BLOCKS_PER_SM", 32);
  result.l2 = (int)environment_number("SIMGPU_L2", 50 << 20);
  result.shared_per_sm = (int)environment_number("SIMGPU_SHARED_PER_SM", 228 << 10);
  result.shared_per_block = (int)environment_number("SIMGPU_SHARED_PER_BLOCK", 227 << 10);
  result.shared_reserved = (int)environment_number("SIMGPU_SHARED_RESERVED", 1 << 10);
  result.name = device_name();
  result.trace = environment_number("SIMGPU_TRACE", 0) != 0;
  return result;
}
const Config& config() {
  static const Config* read = new Config(read_config());
  return *read;
}

int occupancy(int block) {
  if (block <= 0) return 0;
  return std::max(1, std::min(config().threads_per_sm / block, config().blocks_per_sm));
}

static int attribute_value(int attribute, int device) {
  switch (attribute) {
    case MAX_THREADS_PER_BLOCK:
    case MAX_BLOCK_DIM_X:
    case MAX_BLOCK_DIM_Y: return 1024;
    case MAX_BLOCK_DIM_Z: return 64;
    case MAX_GRID_DIM_X: return 2147483647;
    case MAX_GRID_DIM_Y:
    case MAX_GRID_DIM_Z: return 65535;
    case SHARED_MEMORY_PER_BLOCK: return 48 << 10;
    case TOTAL_CONSTANT_MEMORY: return 64 << 10;
    case WARP_SIZE: return 32;
    case MAX_PITCH: return 2147483647;
    case REGISTERS_PER_BLOCK:
    case REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CLOCK_RATE: return 1980000;
    case TEXTURE_ALIGNMENT: return 512;
    case MULTIPROCESSOR_COUNT: return config().multiprocessors;
    case PCI_DEVICE_ID: return device;
    case MEMORY_CLOCK_RATE: return 2619000;
    case MEMORY_BUS_WIDTH: return 5120;
    // Benchmarks clear as much memory before each run, which takes its time where values compute.
    case L2_CACHE_SIZE: return values_mode() ? 1 << 20 : config().l2;
    case MAX_THREADS_PER_MULTIPROCESSOR: return config().threads_per_sm;
    case ASYNC_ENGINE_COUNT: return 3;
    case COMPUTE_CAPABILITY_MAJOR: return config().cc_major;
    case COMPUTE_CAPABILITY_MINOR: return config().cc_minor;
    case SHARED_MEMORY_PER_MULTIPROCESSOR: return config().shared_per_sm;
    case SHARED_MEMORY_PER_BLOCK_OPTIN: return config().shared_per_block;
    case MAX_BLOCKS_PER_MULTIPROCESSOR: return config().blocks_per_sm;
    case RESERVED_SHARED_MEMORY_PER_BLOCK: return config().shared_reserved;
    case CLUSTER_LAUNCH: return config().cc_major >= 9;
    // NVSwitch multiplies what is written, from Hopper on, in data centers. Nothing does here, so
    // that values would be missing.
    case MULTICAST:
      return (config().cc_major == 9 || config().cc_major == 10) && !values_mode();
    case CONCURRENT_KERNELS:
    case UNIFIED_ADDRESSING:
    case STREAM_PRIORITIES_SUPPORTED:
    case MANAGED_MEMORY:
    case COOPERATIVE_LAUNCH:
    case HOST_REGISTER_SUPPORTED:
    case VIRTUAL_MEMORY_MANAGEMENT:
    case HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
    case MEMORY_POOLS_SUPPORTED: return 1;
    default: return 0;
  }
}

int device_attribute(int attribute, int device, int* out) {
  if (device < 0 || device >= config().devices) return E_DEVICE;
  if (!out) return E_VALUE;
  *out = attribute_value(attribute, device);
  return OK;
}
}  // namespace simgpu
