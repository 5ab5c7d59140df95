// libcuda: streams, events, capture and graphs.
#include "driver.h"
using namespace simgpu;
using namespace simgpu::driver;

API(cuStreamCreate, CUstream* s, unsigned f) { return ret(stream_create(f, 0, (Stream**)s)); }
API(cuStreamCreateWithPriority, CUstream* s, unsigned f, int p) {
  return ret(stream_create(f, p, (Stream**)s));
}
API(cuStreamDestroy, CUstream s) { return ret(stream_destroy((Stream*)s)); }
API(cuStreamSynchronize, CUstream s) { return ret(stream_sync(s)); }
API(cuStreamQuery, CUstream s) { return ret(stream_query(s)); }
API(cuStreamWaitEvent, CUstream s, CUevent e, unsigned f) {
  return ret(stream_wait(s, (Event*)e, f));
}
API(cuStreamBeginCapture, CUstream s, CUstreamCaptureMode m) {
  return ret(capture_begin(s, m, nullptr, nullptr, 0));
}
API(cuStreamEndCapture, CUstream s, CUgraph* g) { return ret(capture_end(s, (Graph**)g)); }
API(cuStreamIsCapturing, CUstream s, CUstreamCaptureStatus* st) {
  int v = 0;
  int e = capture_info(s, &v, nullptr, nullptr, nullptr, nullptr);
  *st = (CUstreamCaptureStatus)v;
  return ret(e);
}
API(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode* m) {
  int v = *m;
  int e = capture_exchange_mode(&v);
  *m = (CUstreamCaptureMode)v;
  return ret(e);
}
API(cuStreamWriteValue32, CUstream s, CUdeviceptr p, cuuint32_t v, unsigned) {
  ENTER(cuStreamWriteValue32);
  return ret(submit(s, set_op((void*)p, v, 4, 1)));
}
API(cuStreamWaitValue32, CUstream s, CUdeviceptr, cuuint32_t, unsigned) {
  return ret(submit(s, Op()));
}
API(cuEventCreate, CUevent* e, unsigned f) { return ret(event_create(f, (Event**)e)); }
API(cuEventDestroy, CUevent e) { return ret(event_destroy((Event*)e)); }
API(cuEventRecord, CUevent e, CUstream s) { return ret(event_record((Event*)e, s, 0)); }
API(cuEventQuery, CUevent e) { return ret(event_query((Event*)e)); }
API(cuEventSynchronize, CUevent e) { return ret(event_sync((Event*)e)); }
API(cuEventElapsedTime, float* ms, CUevent a, CUevent b) {
  return ret(event_elapsed(ms, (Event*)a, (Event*)b));
}
API(cuGraphLaunch, CUgraphExec x, CUstream s) { return ret(graph_launch((GraphExec*)x, s)); }
API(cuGraphDestroy, CUgraph g) { return ret(graph_destroy((Graph*)g)); }
API(cuGraphExecDestroy, CUgraphExec x) { return ret(graph_exec_destroy((GraphExec*)x)); }
API(cuGraphInstantiateWithFlags, CUgraphExec* x, CUgraph g, unsigned long long) {
  return ret(graph_instantiate((Graph*)g, (GraphExec**)x));
}
