// Which of the devices that exist this process sees, and what tells them apart.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include "fc.h"

namespace fc {
int physical_devices() {
  const char* v = getenv("SIMGPU_DEVICES");
  return v && *v ? atoi(v) : 1;
}
const char* device_name() {
  const char* v = getenv("SIMGPU_NAME");
  return v && *v ? v : "Simulated GPU";
}
void device_uuid(int physical, unsigned char out[16]) {
  memset(out, 0, 16);
  memcpy(out, "simgpu-device", 13);
  out[15] = (unsigned char)physical;
}
static std::string uuid_text(int physical) {
  unsigned char b[16];
  device_uuid(physical, b);
  std::string s = "GPU-";
  char hex[3];
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) s += '-';
    snprintf(hex, sizeof hex, "%02x", b[i]);
    s += hex;
  }
  return s;
}
// CUDA_VISIBLE_DEVICES as the CUDA C++ programming guide has it: numbers or beginnings of UUIDs, in
// the order that this process will count them; the list ends at the first that names no device, and
// one that names a device twice is empty.
static std::vector<int> visible() {
  std::vector<int> all;
  const char* list = getenv("CUDA_VISIBLE_DEVICES");
  if (!list) {
    for (int i = 0; i < physical_devices(); i++)
      all.push_back(i);
    return all;
  }
  std::string rest = list;
  while (true) {
    size_t comma = rest.find(',');
    std::string item = rest.substr(0, comma);
    item.erase(0, item.find_first_not_of(" \t"));
    int device = -1;
    if (!item.compare(0, 4, "GPU-")) {
      for (int i = 0; i < physical_devices(); i++)
        if (!uuid_text(i).compare(0, item.size(), item)) device = i;
    } else {
      char* end;
      long n = strtol(item.c_str(), &end, 10);
      if (end != item.c_str()) device = (int)n;
    }
    if (device < 0 || device >= physical_devices()) return all;
    for (int d : all)
      if (d == device) return {};
    all.push_back(device);
    if (comma == std::string::npos) return all;
    rest.erase(0, comma + 1);
  }
}
static const std::vector<int>& devices() {
  static const auto* v = new std::vector<int>(visible());
  return *v;
}
int visible_devices() { return (int)devices().size(); }
int physical_device(int dev) { return dev >= 0 && dev < visible_devices() ? devices()[dev] : -1; }
}  // namespace fc
