// Graphs: what a capture makes, and what is launched of it.
#include <cstdio>
#include "core.h"

namespace simgpu {
Node* add_node(Graph* graph, const std::vector<Node*>& deps, Op&& op) {
  auto node = std::make_shared<Node>();
  node->id = graph->nodes.size();
  node->op = std::move(op);
  node->deps = deps;
  graph->nodes.push_back(node);
  return node.get();
}

int graph_create(Graph** out) {
  LOCK;
  *out = new Graph;
  (*out)->id = next_handle_id();
  live(L_GRAPH).insert(*out);
  return OK;
}
int graph_destroy(Graph* graph) {
  LOCK;
  if (!live(L_GRAPH).erase(graph)) return E_VALUE;
  delete graph;
  return OK;
}
bool graph_live(Graph* graph) {
  LOCK;
  return live(L_GRAPH).count(graph);
}

int graph_instantiate(Graph* graph, GraphExec** out) {
  LOCK;
  if (!live(L_GRAPH).count(graph)) return E_VALUE;
  auto* exec = new GraphExec;
  exec->id = next_handle_id();
  exec->nodes = std::make_shared<NodeList>(graph->nodes);
  live(L_EXEC).insert(exec);
  *out = exec;
  return OK;
}
int graph_exec_update(GraphExec* exec, Graph* graph) {
  LOCK;
  if (!live(L_EXEC).count(exec) || !live(L_GRAPH).count(graph)) return E_VALUE;
  exec->nodes = std::make_shared<NodeList>(graph->nodes);
  return OK;
}
int graph_exec_destroy(GraphExec* exec) {
  LOCK;
  if (!live(L_EXEC).erase(exec)) return E_VALUE;
  delete exec;
  return OK;
}

int graph_launch(GraphExec* exec, void* handle) {
  std::shared_ptr<NodeList> nodes;  // while they run, somebody may destroy or update the graph
  {
    LOCK;
    if (!live(L_EXEC).count(exec)) return E_HANDLE;
    Stream* stream = stream_resolve(handle);
    if (!stream) return E_HANDLE;
    exec->launches++;
    if (stream->capture) {
      Op op;
      op.kind = OP_CHILD;
      op.child = exec->nodes;
      return submit(handle, std::move(op));
    }
    nodes = exec->nodes;
    uint64_t time = 0;
    for (auto& node : *nodes)
      time += cost(node->op);
    busy(stream, time);
    log_graph(stream, *nodes);
  }
  return execute_nodes(*nodes);
}

int graph_add(Graph* graph, Node** deps, size_t count, Op&& op, Node** out) {
  LOCK;
  if (!live(L_GRAPH).count(graph)) return E_VALUE;
  Node* node = add_node(graph, std::vector<Node*>(deps, deps + count), std::move(op));
  if (out) *out = node;
  return OK;
}

static const char* label(const Op& op) {
  switch (op.kind) {
    case OP_KERNEL: return op.kernel->name.c_str();
    case OP_MEMCPY: return "memcpy";
    case OP_MEMSET: return "memset";
    case OP_HOST: return "host";
    case OP_CHILD: return "graph";
    case OP_EMPTY: return "empty";
    case OP_EVENT_WAIT: return "event_wait";
    case OP_EVENT_RECORD: return "event_record";
    case OP_PYTHON: return "python";
  }
  return "";
}

int graph_dot(Graph* graph, const char* path) {
  LOCK;
  if (!live(L_GRAPH).count(graph)) return E_VALUE;
  FILE* file = fopen(path, "w");
  if (!file) return E_VALUE;
  using Number = unsigned long long;
  fprintf(file, "digraph g%llu {\n", (Number)graph->id);
  for (auto& node : graph->nodes) {
    fprintf(file, "  n%llu [label=\"%s\"];\n", (Number)node->id, label(node->op));
    for (auto* before : node->deps)
      fprintf(file, "  n%llu -> n%llu;\n", (Number)before->id, (Number)node->id);
  }
  fprintf(file, "}\n");
  fclose(file);
  return OK;
}
}  // namespace simgpu
