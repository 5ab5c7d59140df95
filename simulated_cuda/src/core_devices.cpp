// Which of the devices that exist this process sees, what tells them apart, and which is current.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "core.h"

namespace simgpu {
int physical_devices() {
  const char* count = getenv("SIMGPU_DEVICES");
  return count && *count ? atoi(count) : 1;
}

void device_uuid(int physical, unsigned char out[16]) {
  memset(out, 0, 16);
  memcpy(out, "simgpu-device", 13);
  out[15] = (unsigned char)physical;
}

std::string device_uuid_text(int physical) {
  unsigned char bytes[16];
  device_uuid(physical, bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; i++) {
    char hex[3];
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    snprintf(hex, sizeof hex, "%02x", bytes[i]);
    text += hex;
  }
  return text;
}

// The device that an item of CUDA_VISIBLE_DEVICES names, or a number that none has.
static int named_device(const std::string& item) {
  int device = -1;
  if (item.compare(0, 4, "GPU-")) {
    char* end;
    long number = strtol(item.c_str(), &end, 10);
    if (end != item.c_str()) device = (int)number;
    return device;
  }
  for (int i = 0; i < physical_devices(); i++)
    if (!device_uuid_text(i).compare(0, item.size(), item)) device = i;
  return device;
}

// CUDA_VISIBLE_DEVICES as the CUDA C++ programming guide has it: numbers or beginnings of UUIDs, in
// the order that this process will count them; the list ends at the first that names no device, and
// one that names a device twice is empty.
static std::vector<int> visible() {
  std::vector<int> shown;
  const char* list = getenv("CUDA_VISIBLE_DEVICES");
  if (!list) {
    for (int i = 0; i < physical_devices(); i++)
      shown.push_back(i);
    return shown;
  }
  std::string rest = list;
  while (true) {
    size_t comma = rest.find(',');
    std::string item = rest.substr(0, comma);
    item.erase(0, item.find_first_not_of(" \t"));
    int device = named_device(item);
    if (device < 0 || device >= physical_devices()) return shown;
    for (int other : shown)
      if (other == device) return {};
    shown.push_back(device);
    if (comma == std::string::npos) return shown;
    rest.erase(0, comma + 1);
  }
}
static const std::vector<int>& devices() {
  static const auto* shown = new std::vector<int>(visible());
  return *shown;
}
int visible_devices() { return (int)devices().size(); }
int physical_device(int device) {
  return device >= 0 && device < visible_devices() ? devices()[device] : -1;
}

static thread_local int tl_device = 0;
int current_device() { return tl_device; }
int set_device(int device) {
  if (device < 0 || device >= config().devices) return E_DEVICE;
  tl_device = device;
  return OK;
}

static std::atomic<unsigned> g_primary{0};  // a bit for each device
void touch_primary(int device) {
  unsigned bit = 1u << device;
  if (g_primary.fetch_or(bit) & bit) return;
  LOCK;
  arena(device)->take(0);  // which publishes what the context takes
}
bool primary_active(int device) { return g_primary.load() >> device & 1; }
}  // namespace simgpu
