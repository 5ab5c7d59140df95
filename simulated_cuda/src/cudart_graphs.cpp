// libcudart: graphs.
#include <cstring>
#include "runtime.h"
using namespace simgpu;
using namespace simgpu::runtime;

API(cudaGraphCreate, cudaGraph_t* g, unsigned) {
  ENTER(cudaGraphCreate);
  return ret(graph_create((Graph**)g));
}
API(cudaGraphDestroy, cudaGraph_t g) {
  ENTER(cudaGraphDestroy);
  return ret(graph_destroy(graph_of(g)));
}
API(cudaGraphInstantiate, cudaGraphExec_t* x, cudaGraph_t g, unsigned long long) {
  ENTER(cudaGraphInstantiate);
  return ret(graph_instantiate(graph_of(g), (GraphExec**)x));
}
API(cudaGraphInstantiateWithFlags, cudaGraphExec_t* x, cudaGraph_t g, unsigned long long) {
  ENTER(cudaGraphInstantiateWithFlags);
  return ret(graph_instantiate(graph_of(g), (GraphExec**)x));
}
API(cudaGraphExecUpdate, cudaGraphExec_t x, cudaGraph_t g, cudaGraphExecUpdateResultInfo* r) {
  ENTER(cudaGraphExecUpdate);
  if (r) memset(r, 0, sizeof *r);
  return ret(graph_exec_update(exec_of(x), graph_of(g)));
}
API(cudaGraphExecDestroy, cudaGraphExec_t x) {
  ENTER(cudaGraphExecDestroy);
  return ret(graph_exec_destroy(exec_of(x)));
}
API(cudaGraphUpload, cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
API(cudaGraphLaunch, cudaGraphExec_t x, cudaStream_t s) {
  ENTER(cudaGraphLaunch);
  return ret(graph_launch(exec_of(x), s));
}
API(cudaGraphDebugDotPrint, cudaGraph_t g, const char* p, unsigned) {
  ENTER(cudaGraphDebugDotPrint);
  return ret(graph_dot(graph_of(g), p));
}
API(cudaGraphGetNodes, cudaGraph_t g, cudaGraphNode_t* out, size_t* n) {
  ENTER(cudaGraphGetNodes);
  if (!graph_live(graph_of(g))) return ret(E_VALUE);
  auto& v = graph_of(g)->nodes;
  if (out)
    for (size_t i = 0; i < *n && i < v.size(); i++)
      out[i] = (cudaGraphNode_t)v[i].get();
  if (!out || *n > v.size()) *n = v.size();
  return cudaSuccess;
}
API(cudaGraphGetRootNodes, cudaGraph_t g, cudaGraphNode_t* out, size_t* n) {
  ENTER(cudaGraphGetRootNodes);
  if (!graph_live(graph_of(g))) return ret(E_VALUE);
  size_t k = 0;
  for (auto& q : graph_of(g)->nodes)
    if (q->deps.empty()) {
      if (out && k < *n) out[k] = (cudaGraphNode_t)q.get();
      k++;
    }
  *n = k;
  return cudaSuccess;
}
API(cudaGraphNodeGetDependencies, cudaGraphNode_t nd, cudaGraphNode_t* out, cudaGraphEdgeData* ed,
    size_t* n) {
  ENTER(cudaGraphNodeGetDependencies);
  auto& v = ((Node*)nd)->deps;
  if (out)
    for (size_t i = 0; i < *n && i < v.size(); i++) {
      out[i] = (cudaGraphNode_t)v[i];
      if (ed) memset(&ed[i], 0, sizeof *ed);
    }
  if (!out || *n > v.size()) *n = v.size();
  return cudaSuccess;
}
API(cudaGraphNodeGetType, cudaGraphNode_t nd, enum cudaGraphNodeType* t) {
  static const cudaGraphNodeType k[] = {cudaGraphNodeTypeKernel,    cudaGraphNodeTypeMemcpy,
                                        cudaGraphNodeTypeMemset,    cudaGraphNodeTypeHost,
                                        cudaGraphNodeTypeGraph,     cudaGraphNodeTypeEmpty,
                                        cudaGraphNodeTypeWaitEvent, cudaGraphNodeTypeEventRecord};
  *t = k[((Node*)nd)->op.kind];
  return cudaSuccess;
}
API(cudaGraphAddEmptyNode, cudaGraphNode_t* o, cudaGraph_t g, const cudaGraphNode_t* d, size_t n) {
  Op op;
  return ret(graph_add(graph_of(g), (Node**)d, n, std::move(op), (Node**)o));
}
