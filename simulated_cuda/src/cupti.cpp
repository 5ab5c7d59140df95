// libcupti: a profiler may subscribe and ask for activities; there never are any. Which of its
// operations a thread is in is kept for the log of work.
#include <cstddef>
#include <cstdint>
#include "device.h"

namespace {
enum { SUCCESS = 0, MAX_LIMIT_REACHED = 12 };
char subscriber;
}  // namespace

#define API(name, ...) extern "C" int cupti##name(__VA_ARGS__)
API(GetVersion, uint32_t* v) {
  *v = 130000;
  return SUCCESS;
}
API(GetResultString, int e, const char** s) {
  *s = e == MAX_LIMIT_REACHED ? "CUPTI_ERROR_MAX_LIMIT_REACHED"
       : e                    ? "CUPTI_ERROR_UNKNOWN"
                              : "CUPTI_SUCCESS";
  return SUCCESS;
}
API(Subscribe, void** s, void*, void*) {
  *s = &subscriber;
  return SUCCESS;
}
API(Unsubscribe, void*) { return SUCCESS; }
API(EnableCallback, uint32_t, void*, int, uint32_t) { return SUCCESS; }
API(EnableDomain, uint32_t, void*, int) { return SUCCESS; }
API(GetCallbackName, int, uint32_t, const char** name) {
  *name = "unknown";
  return SUCCESS;
}
API(Finalize) { return SUCCESS; }
API(ActivityEnable, int) { return SUCCESS; }
API(ActivityDisable, int) { return SUCCESS; }
API(ActivityEnableDriverApi, uint32_t, uint8_t) { return SUCCESS; }
API(ActivityEnableRuntimeApi, uint32_t, uint8_t) { return SUCCESS; }
API(ActivityEnableCudaEventDeviceTimestamps, uint8_t) { return SUCCESS; }
API(ActivityRegisterCallbacks, void*, void*) { return SUCCESS; }
API(ActivityRegisterTimestampCallback, void*) { return SUCCESS; }
API(ActivityFlushAll, uint32_t) { return SUCCESS; }
API(ActivityGetNextRecord, uint8_t*, size_t, void**) { return MAX_LIMIT_REACHED; }
API(ActivityGetNumDroppedRecords, void*, uint32_t, size_t* n) {
  if (n) *n = 0;
  return SUCCESS;
}
API(ActivitySetAttribute, int, size_t*, void*) { return SUCCESS; }
// CUpti_ExternalCorrelationKind: CUSTOM0 is of Kineto's operations, CUSTOM1 of the user's ranges.
constexpr int OF_OPERATIONS = 3;
API(ActivityPushExternalCorrelationId, int kind, uint64_t number) {
  if (kind == OF_OPERATIONS) simgpu::operation_begins(number);
  return SUCCESS;
}
API(ActivityPopExternalCorrelationId, int kind, uint64_t* last) {
  uint64_t number = kind == OF_OPERATIONS ? simgpu::operation_ends() : 0;
  if (last) *last = number;
  return SUCCESS;
}
