// libnvrtc: accepts every program and hands out an image that only says so; its kernels are no-ops
// that are counted. Where NVIDIA's libnvrtc is installed it is used instead: it needs no device,
// and tells what is wrong with a program's CUDA source, which this one does not read.
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {
// torch keeps the images that it is given on disk, for real devices too: this one must not get
// there.
__attribute__((constructor)) void no_kernel_cache() { setenv("USE_PYTORCH_KERNEL_CACHE", "0", 1); }

enum { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, NAME_NOT_VALID = 10 };
constexpr char kImage[] = "// an image of the simulated device: no code\n";
struct Program {
  std::map<std::string, std::string> names;
};
int image_size(void* p, size_t* n) {
  if (!p) return INVALID_PROGRAM;
  *n = sizeof kImage;
  return SUCCESS;
}
int image(void* p, char* out) {
  if (!p) return INVALID_PROGRAM;
  memcpy(out, kImage, sizeof kImage);
  return SUCCESS;
}
}  // namespace

extern "C" {
int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return SUCCESS;
}
const char* nvrtcGetErrorString(int e) {
  switch (e) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case NAME_NOT_VALID: return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
}
int nvrtcGetNumSupportedArchs(int* n) {
  *n = 1;
  return SUCCESS;
}
int nvrtcGetSupportedArchs(int* archs) {
  *archs = 90;
  return SUCCESS;
}
int nvrtcCreateProgram(void** p, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  if (!p || !source) return INVALID_INPUT;
  *p = new Program;
  return SUCCESS;
}
int nvrtcDestroyProgram(void** p) {
  if (!p || !*p) return INVALID_PROGRAM;
  delete (Program*)*p;
  *p = nullptr;
  return SUCCESS;
}
int nvrtcCompileProgram(void* p, int, const char* const*) { return p ? SUCCESS : INVALID_PROGRAM; }
int nvrtcGetProgramLogSize(void* p, size_t* n) {
  if (!p) return INVALID_PROGRAM;
  *n = 1;
  return SUCCESS;
}
int nvrtcGetProgramLog(void* p, char* log) {
  if (!p) return INVALID_PROGRAM;
  *log = 0;
  return SUCCESS;
}
int nvrtcGetPTXSize(void* p, size_t* n) { return image_size(p, n); }
int nvrtcGetPTX(void* p, char* out) { return image(p, out); }
int nvrtcGetCUBINSize(void* p, size_t* n) { return image_size(p, n); }
int nvrtcGetCUBIN(void* p, char* out) { return image(p, out); }
int nvrtcGetLTOIRSize(void* p, size_t* n) { return image_size(p, n); }
int nvrtcGetLTOIR(void* p, char* out) { return image(p, out); }
// A kernel's lowered name is the expression itself: whoever asks the module for it gets a kernel
// that is called so.
int nvrtcAddNameExpression(void* p, const char* e) {
  if (!p || !e) return INVALID_INPUT;
  ((Program*)p)->names[e] = e;
  return SUCCESS;
}
int nvrtcGetLoweredName(void* p, const char* e, const char** lowered) {
  if (!p || !e) return INVALID_INPUT;
  auto it = ((Program*)p)->names.find(e);
  if (it == ((Program*)p)->names.end()) return NAME_NOT_VALID;
  *lowered = it->second.c_str();
  return SUCCESS;
}
}
