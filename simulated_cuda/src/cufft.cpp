// libcufft: plans and the size of their work area.
#include <map>
#include <mutex>
#include "library.h"
using namespace simgpu;

namespace {
enum { SUCCESS = 0, INVALID_PLAN = 1, INVALID_VALUE = 4, EXEC_FAILED = 6, INVALID_SIZE = 8 };
struct Plan {
  void* stream = nullptr;
  size_t work = 0;
};
std::mutex& lock() {
  static auto* m = new std::mutex;
  return *m;
}
std::map<int, Plan>& plans() {
  static auto* m = new std::map<int, Plan>;
  return *m;
}
Plan* find(int id) {
  auto it = plans().find(id);
  return it == plans().end() ? nullptr : &it->second;
}

// Elements of work area for one dimension of n: cuFFT's documentation names one complex element per
// element of the transform as the least, for lengths that factor into 2, 3, 5 and 7. For others it
// names Bluestein's algorithm, whose convolution needs a power of two of at least 2n - 1.
size_t padded(size_t n) {
  size_t rest = n;
  for (size_t p : {2, 3, 5, 7})
    while (rest && rest % p == 0)
      rest /= p;
  if (rest <= 1) return n;
  size_t m = 1;
  while (m < 2 * n - 1)
    m *= 2;
  return m;
}
// An estimate: the real size depends on the device and the release.
size_t work_area(int rank, const long long* n, int type, long long batch) {
  size_t elements = batch;
  for (int i = 0; i < rank; i++)
    elements *= padded(n[i]);
  size_t complex_bytes = type == 1 || type == 5   ? 16
                         : type == 2 || type == 6 ? 4
                                                  : 8;  // double, half, single
  return elements * complex_bytes;
}
}  // namespace

extern "C" {
int cufftCreate(int* plan) {
  std::lock_guard<std::mutex> l(lock());
  static int next = 0;
  plans()[*plan = ++next];
  return SUCCESS;
}
int cufftDestroy(int plan) {
  std::lock_guard<std::mutex> l(lock());
  return plans().erase(plan) ? SUCCESS : INVALID_PLAN;
}
int cufftGetVersion(int* v) {
  *v = 12000;
  return SUCCESS;
}
int cufftSetAutoAllocation(int, int) { return SUCCESS; }
int cufftSetWorkArea(int, void*) { return SUCCESS; }
int cufftSetStream(int plan, void* stream) {
  std::lock_guard<std::mutex> l(lock());
  Plan* p = find(plan);
  if (!p) return INVALID_PLAN;
  p->stream = stream;
  return SUCCESS;
}
int cufftXtMakePlanMany(int plan, int rank, long long* n, long long*, long long, long long, int,
                        long long*, long long, long long, int, long long batch, size_t* work,
                        int execution_type) {
  std::lock_guard<std::mutex> l(lock());
  Plan* p = find(plan);
  if (!p) return INVALID_PLAN;
  if (rank < 1 || rank > 3 || batch < 1) return INVALID_VALUE;
  for (int i = 0; i < rank; i++)
    if (n[i] < 1) return INVALID_SIZE;
  p->work = work_area(rank, n, execution_type, batch);
  if (work) *work = p->work;
  return SUCCESS;
}
int cufftGetSize(int plan, size_t* work) {
  std::lock_guard<std::mutex> l(lock());
  Plan* p = find(plan);
  if (!p) return INVALID_PLAN;
  *work = p->work;
  return SUCCESS;
}
int cufftXtExec(int plan, void*, void*, int) {
  void* stream;
  {
    std::lock_guard<std::mutex> l(lock());
    Plan* p = find(plan);
    if (!p) return INVALID_PLAN;
    stream = p->stream;
  }
  return count_kernel("cufftXtExec", stream) ? EXEC_FAILED : SUCCESS;
}
}
