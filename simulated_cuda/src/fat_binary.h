// Which of a fat binary's images a device runs.
//
// What nvcc embeds is a wrapper with a pointer to regions, each a header of 16 bytes and entries:
// an image (ELF code of one architecture, or PTX) after a header that says its kind, both sizes and
// its architecture. The wrapper is that of CUDA's fatbinary_section.h, the rest as seen in torch's
// libraries; images may be compressed, headers are not.
#pragma once
#include <cstdint>

namespace fat_binary {
struct Wrapper {
  uint32_t magic, version;
  const unsigned char* data;
  void* files;
};
struct Region {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed, unused;
  uint16_t minor, major;
  uint32_t arch;
};
constexpr uint32_t WRAPPER = 0x466243b1, REGION = 0xba55ed50;
constexpr uint16_t PTX = 1, ELF = 2;

struct Image {
  int binary, ptx;
};

// The image for a device of compute capability `device` (89 for 8.9): code runs on later minor
// versions of its major version, the latest wins; without any, the driver compiles the latest PTX
// for the device itself. {device, device} where neither is found, as in a program that has
// registered none.
inline Image chosen(const void* registered, int device) {
  auto* wrapper = (const Wrapper*)registered;
  int elf = 0, ptx = 0;
  if (wrapper && wrapper->magic == WRAPPER && wrapper->data) {
    auto* region = (const Region*)wrapper->data;
    if (region->magic == REGION) {
      auto* at = wrapper->data + region->header_bytes;
      auto* end = at + region->bytes;
      while (at + sizeof(Entry) <= end) {
        auto* e = (const Entry*)at;
        if (!e->header_bytes) break;
        int arch = (int)e->arch;
        if (e->kind == ELF && arch / 10 == device / 10 && arch <= device && arch > elf) elf = arch;
        if (e->kind == PTX && arch <= device && arch > ptx) ptx = arch;
        at += e->header_bytes + e->bytes;
      }
    }
  }
  if (elf) return {elf, elf};
  if (ptx) return {device, ptx};
  return {device, device};
}
}  // namespace fat_binary
