// Names and texts of CUDA's errors, as the runtime and the driver give them.
#include <string>
#include "device.h"

namespace simgpu {
namespace {
struct ErrorText {
  int error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {OK, "cudaSuccess", "no error"},
    {E_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {E_OOM, "cudaErrorMemoryAllocation", "out of memory"},
    {E_NODEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {E_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {E_CONTEXT, "cudaErrorDeviceUninitialized", "invalid device context"},
    {E_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {E_NOTFOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {E_NOTREADY, "cudaErrorNotReady", "device not ready"},
    {E_ILLEGAL, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {E_ASSERT, "cudaErrorAssert", "device-side assert triggered"},
    {E_HOSTREG, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {E_HOSTNOTREG, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {E_NOTPERM, "cudaErrorNotPermitted", "operation not permitted"},
    {E_UNSUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {E_CAP_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {E_CAP_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {E_CAP_MERGE, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {E_CAP_UNMATCHED, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {E_CAP_UNJOINED, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {E_CAP_ISOLATION, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {E_CAP_IMPLICIT, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {E_CAPTURED_EVENT, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {E_CAP_THREAD, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};
}  // namespace

const char* error_name(int error) {
  for (auto& row : kErrors)
    if (row.error == error) return row.name;
  return "cudaErrorUnknown";
}
const char* error_string(int error) {
  if (error == E_UNSUPPORTED && !last_unimplemented().empty()) {
    static thread_local auto* text = new std::string;
    *text = "operation not supported: the simulated device has no " + last_unimplemented();
    return text->c_str();
  }
  for (auto& row : kErrors)
    if (row.error == error) return row.text;
  return "unknown error";
}
}  // namespace simgpu
