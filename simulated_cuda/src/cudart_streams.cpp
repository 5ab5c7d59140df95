// libcudart: streams, their capture, and events.
#include "runtime.h"
using namespace simgpu;
using namespace simgpu::runtime;

// ---- streams
API(cudaStreamCreateWithPriority, cudaStream_t* s, unsigned f, int p) {
  ENTER(cudaStreamCreateWithPriority);
  return ret(stream_create(f, p, (Stream**)s));
}
API(cudaStreamCreateWithFlags, cudaStream_t* s, unsigned f) {
  return ret(stream_create(f, 0, (Stream**)s));
}
API(cudaStreamCreate, cudaStream_t* s) { return ret(stream_create(0, 0, (Stream**)s)); }
API(cudaStreamDestroy, cudaStream_t s) {
  ENTER(cudaStreamDestroy);
  return ret(stream_destroy((Stream*)s));
}
API(cudaStreamSynchronize, cudaStream_t s) {
  ENTER(cudaStreamSynchronize);
  return ret(stream_sync(s));
}
API(cudaStreamQuery, cudaStream_t s) {
  ENTER(cudaStreamQuery);
  return ret(stream_query(s));
}
API(cudaStreamWaitEvent, cudaStream_t s, cudaEvent_t e, unsigned f) {
  ENTER(cudaStreamWaitEvent);
  return ret(stream_wait(s, event_of(e), f));
}
API(cudaStreamGetPriority, cudaStream_t s, int* p) {
  Stream* q = stream_resolve(s);
  if (!q) return ret(E_HANDLE);
  *p = q->priority;
  return cudaSuccess;
}
API(cudaStreamGetFlags, cudaStream_t s, unsigned* p) {
  Stream* q = stream_resolve(s);
  if (!q) return ret(E_HANDLE);
  *p = q->flags;
  return cudaSuccess;
}
API(cudaStreamGetDevice, cudaStream_t s, int* p) {
  Stream* q = stream_resolve(s);
  if (!q) return ret(E_HANDLE);
  *p = q->dev;
  return cudaSuccess;
}
API(cudaStreamGetId, cudaStream_t s, unsigned long long* p) {
  Stream* q = stream_resolve(s);
  if (!q) return ret(E_HANDLE);
  *p = q->id;
  return cudaSuccess;
}
API(cudaLaunchHostFunc, cudaStream_t s, cudaHostFn_t fn, void* u) {
  ENTER(cudaLaunchHostFunc);
  return ret(submit(s, host_op(fn, u)));
}
struct Callback {
  cudaStream_t stream;
  cudaStreamCallback_t function;
  void* user_data;
};
API(cudaStreamAddCallback, cudaStream_t s, cudaStreamCallback_t f, void* u, unsigned) {
  ENTER(cudaStreamAddCallback);
  auto call = [](void* data) {
    auto* callback = (Callback*)data;  // kept: a graph calls it at each launch
    callback->function(callback->stream, cudaSuccess, callback->user_data);
  };
  return ret(submit(s, host_op(call, new Callback{s, f, u})));
}

// ---- capture
API(cudaStreamBeginCapture, cudaStream_t s, enum cudaStreamCaptureMode m) {
  ENTER(cudaStreamBeginCapture);
  return ret(capture_begin(s, m, nullptr, nullptr, 0));
}
API(cudaStreamBeginCaptureToGraph, cudaStream_t s, cudaGraph_t g, const cudaGraphNode_t* d,
    const cudaGraphEdgeData*, size_t n, enum cudaStreamCaptureMode m) {
  ENTER(cudaStreamBeginCaptureToGraph);
  return ret(capture_begin(s, m, graph_of(g), (Node**)d, n));
}
API(cudaStreamEndCapture, cudaStream_t s, cudaGraph_t* g) {
  // An injected failure still ends the capture, as a real one does.
  static ApiStat stat("cudaStreamEndCapture");
  int injected = stat.enter();
  int error = capture_end(s, (Graph**)g);
  if (injected && *g) {
    graph_destroy(graph_of(*g));
    *g = nullptr;
  }
  return ret(injected ? injected : error);
}
API(cudaStreamIsCapturing, cudaStream_t s, enum cudaStreamCaptureStatus* st) {
  ENTER(cudaStreamIsCapturing);
  int v = 0;
  int e = capture_info(s, &v, nullptr, nullptr, nullptr, nullptr);
  *st = (cudaStreamCaptureStatus)v;
  return ret(e);
}
API(cudaStreamGetCaptureInfo, cudaStream_t s, enum cudaStreamCaptureStatus* st,
    unsigned long long* id, cudaGraph_t* g, const cudaGraphNode_t** d, const cudaGraphEdgeData** ed,
    size_t* n) {
  ENTER(cudaStreamGetCaptureInfo);
  int v = 0;
  uint64_t i = 0;
  Graph* gr = nullptr;
  Node** dp = nullptr;
  size_t dn = 0;
  int e = capture_info(s, &v, &i, &gr, &dp, &dn);
  if (st) *st = (cudaStreamCaptureStatus)v;
  if (id) *id = i;
  if (g) *g = (cudaGraph_t)gr;
  if (d) *d = (const cudaGraphNode_t*)dp;
  if (ed) *ed = nullptr;
  if (n) *n = dn;
  return ret(e);
}
API(cudaStreamUpdateCaptureDependencies, cudaStream_t s, cudaGraphNode_t* d,
    const cudaGraphEdgeData*, size_t n, unsigned f) {
  ENTER(cudaStreamUpdateCaptureDependencies);
  return ret(capture_update(s, (Node**)d, n, f));
}
API(cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode* m) {
  int v = *m;
  int e = capture_exchange_mode(&v);
  *m = (cudaStreamCaptureMode)v;
  return ret(e);
}

// ---- events
API(cudaEventCreateWithFlags, cudaEvent_t* e, unsigned f) {
  ENTER(cudaEventCreateWithFlags);
  return ret(event_create(f, (Event**)e));
}
API(cudaEventCreate, cudaEvent_t* e) {
  ENTER(cudaEventCreate);
  return ret(event_create(0, (Event**)e));
}
API(cudaEventDestroy, cudaEvent_t e) {
  ENTER(cudaEventDestroy);
  return ret(event_destroy(event_of(e)));
}
API(cudaEventRecord, cudaEvent_t e, cudaStream_t s) {
  ENTER(cudaEventRecord);
  return ret(event_record(event_of(e), s, 0));
}
API(cudaEventRecordWithFlags, cudaEvent_t e, cudaStream_t s, unsigned f) {
  ENTER(cudaEventRecordWithFlags);
  return ret(event_record(event_of(e), s, f));
}
API(cudaEventQuery, cudaEvent_t e) {
  ENTER(cudaEventQuery);
  return ret(event_query(event_of(e)));
}
API(cudaEventSynchronize, cudaEvent_t e) {
  ENTER(cudaEventSynchronize);
  return ret(event_sync(event_of(e)));
}
API(cudaEventElapsedTime, float* ms, cudaEvent_t a, cudaEvent_t b) {
  ENTER(cudaEventElapsedTime);
  return ret(event_elapsed(ms, event_of(a), event_of(b)));
}
// An event of another process is one that is always over.
API(cudaIpcGetEventHandle, cudaIpcEventHandle_t* h, cudaEvent_t) {
  ENTER(cudaIpcGetEventHandle);
  *h = {};
  return cudaSuccess;
}
API(cudaIpcOpenEventHandle, cudaEvent_t* e, cudaIpcEventHandle_t) {
  ENTER(cudaIpcOpenEventHandle);
  return ret(event_create(0, (Event**)e));
}
