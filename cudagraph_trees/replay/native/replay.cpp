// What a replay asks of many tensors at once: where inputs lie, which outputs are held, what their
// last holders left on them. Each has its oracle in Python (replay/), which is used without this.

#include <Python.h>
#include <structmember.h>
#include <ATen/CachedTensorUtils.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/inductor/inductor_ops.h>

#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace {

bool is_list(PyObject* x, const char* what) {
  if (PyList_Check(x)) return true;
  PyErr_Format(PyExc_TypeError, "%s must be a list, not %s", what, Py_TYPE(x)->tp_name);
  return false;
}

bool read_index(PyObject* number, Py_ssize_t size, const char* of, Py_ssize_t& i) {
  i = PyLong_AsSsize_t(number);
  if (PyErr_Occurred()) return false;
  if (i >= 0 && i < size) return true;
  PyErr_Format(PyExc_IndexError, "there is no %s %zd", of, i);
  return false;
}

// Collects indices: an empty tuple if there are none, which costs nothing.
struct Found {
  PyObject* list = nullptr;
  ~Found() { Py_XDECREF(list); }
  bool add(Py_ssize_t i) {
    if (!list && !(list = PyList_New(0))) return false;
    PyObject* number = PyLong_FromSsize_t(i);
    const bool done = number && PyList_Append(list, number) == 0;
    Py_XDECREF(number);
    return done;
  }
  PyObject* take() { return list ? std::exchange(list, nullptr) : PyTuple_New(0); }
};

// ---- Whether tensors lie where they lay when a graph was captured.
//
// torch._C._tensors_data_ptrs_at_indices_equal asks the same; it takes lists of Python integers
// apart at each call, 35 to 100 ns a tensor. Here they are taken apart once, and a tensor costs the
// three cache lines that lead to its address.

struct Addresses {
  PyObject_HEAD
  std::vector<std::pair<Py_ssize_t, const void*>> expected;
};

// Addresses(pointers: list[int | None], checked: list[int])
PyObject* make_addresses(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *pointers, *checked;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &pointers, &PyList_Type, &checked)) {
    return nullptr;
  }
  std::vector<std::pair<Py_ssize_t, const void*>> expected;
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(checked); ++k) {
    Py_ssize_t i;
    const Py_ssize_t size = PyList_GET_SIZE(pointers);
    if (!read_index(PyList_GET_ITEM(checked, k), size, "pointer", i)) return nullptr;
    PyObject* pointer = PyList_GET_ITEM(pointers, i);
    if (pointer == Py_None) continue;
    expected.emplace_back(i, PyLong_AsVoidPtr(pointer));
    if (PyErr_Occurred()) return nullptr;
  }
  auto* self = reinterpret_cast<Addresses*>(type->tp_alloc(type, 0));
  if (self) new (&self->expected) decltype(expected)(std::move(expected));
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

void destroy_addresses(Addresses* self) {
  using Expected = decltype(self->expected);
  self->expected.~Expected();
  Py_TYPE(self)->tp_free(self);
}

PyObject* equal(Addresses* self, PyObject* inputs) {
  HANDLE_TH_ERRORS
  if (!is_list(inputs, "inputs")) return nullptr;
  const Py_ssize_t size = PyList_GET_SIZE(inputs);
  for (const auto& [i, pointer] : self->expected) {
    if (i >= size) Py_RETURN_FALSE;
    PyObject* x = PyList_GET_ITEM(inputs, i);
    // As Tensor.data_ptr(): of memory that was reused it raises the error that says so.
    if (!THPVariable_Check(x) || THPVariable_Unpack(x).data_ptr() != pointer) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// ---- Which outputs somebody holds: StorageWeakRefWrapper.expired() of many.

struct Liveness {
  PyObject_HEAD
  PyTypeObject* reference;
  // Where its attributes lie in an object of that type.
  Py_ssize_t cache, own, pointer, slot;
};

// Liveness(reference: type), whose __slots__ have these names.
PyObject* make_liveness(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* reference;
  if (!PyArg_ParseTuple(args, "O!", &PyType_Type, &reference)) return nullptr;
  auto* self = reinterpret_cast<Liveness*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->reference = reinterpret_cast<PyTypeObject*>(Py_NewRef(reference));
  const std::pair<const char*, Py_ssize_t*> slots[] = {{"cache", &self->cache},
                                                       {"own", &self->own},
                                                       {"pointer", &self->pointer},
                                                       {"slot", &self->slot}};
  for (const auto& [name, offset] : slots) {
    PyObject* found = PyObject_GetAttrString(reference, name);
    const bool is_slot = found && Py_IS_TYPE(found, &PyMemberDescr_Type);
    if (is_slot) *offset = reinterpret_cast<PyMemberDescrObject*>(found)->d_member->offset;
    Py_XDECREF(found);
    if (!is_slot) {
      Py_DECREF(self);
      if (!found) return nullptr;
      return PyErr_Format(PyExc_TypeError, "%s is no slot of %R", name, reference);
    }
  }
  return reinterpret_cast<PyObject*>(self);
}

void destroy_liveness(Liveness* self) {
  Py_DECREF(self->reference);
  Py_TYPE(self)->tp_free(self);
}

bool lies_in(PyObject* tensor, c10::StorageImpl* storage) {
  return THPVariable_Check(tensor) &&
      THPVariable_Unpack(tensor).unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
      storage;
}

PyObject* live(Liveness* self, PyObject* refs) {
  HANDLE_TH_ERRORS
  if (!is_list(refs, "references")) return nullptr;
  Found found;
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(refs); ++k) {
    PyObject* ref = PyList_GET_ITEM(refs, k);
    if (Py_TYPE(ref) != self->reference) {
      return PyErr_Format(PyExc_TypeError, "%R is no %s", ref, self->reference->tp_name);
    }
    const auto at = [ref](Py_ssize_t offset) {
      return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(ref) + offset);
    };
    PyObject *cache = at(self->cache), *own = at(self->own), *slot = at(self->slot);
    PyObject* pointer = at(self->pointer);
    if (!cache || !own || !slot || !pointer) {
      return PyErr_Format(PyExc_AttributeError, "reference %zd has not all of its attributes", k);
    }
    auto* storage = static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(pointer));
    if (PyErr_Occurred()) return nullptr;
    const size_t count = c10::raw::weak_intrusive_ptr::use_count(storage);
    bool is_live = count != 0;
    if (cache != Py_None) {
      const size_t expected = PyLong_AsSize_t(own);
      if (PyErr_Occurred() || !is_list(cache, "cache")) return nullptr;
      Py_ssize_t i;
      if (!read_index(slot, PyList_GET_SIZE(cache), "slot", i)) return nullptr;
      PyObject* cached = PyList_GET_ITEM(cache, i);
      is_live = Py_REFCNT(cached) != 1 || count != expected || !lies_in(cached, storage);
    }
    if (is_live && !found.add(k)) return nullptr;
  }
  return found.take();
  END_HANDLE_TH_ERRORS
}

// ---- What the last holder of a cached output left on it: OutputCache._clean() of many.

bool has_attributes(PyObject* object) {
  PyObject** attributes = _PyObject_GetDictPtr(object);
  return attributes && *attributes && PyDict_GET_SIZE(*attributes);
}

bool is_changed(PyObject* object, const at::Tensor& t) {
  return t._version() || has_attributes(object) ||
      reinterpret_cast<PyObject*>(Py_TYPE(object)) != THPVariableClass;
}

// Whether nothing but a grad_fn has to go.
bool has_only_grad_fn(PyObject* object, const torch::autograd::AutogradMeta& of) {
  return of.grad_fn_ && !of.grad_.defined() && !of.retains_grad_ && !of.is_view_ &&
      of.hooks_.empty() && !reinterpret_cast<THPVariable*>(object)->backward_hooks;
}

bool has_nothing(const torch::autograd::AutogradMeta& of) {
  return !of.requires_grad() && !of.grad_.defined() && of.hooks_.empty() &&
      !of.post_acc_grad_hooks_;
}

// clean(tensors: list, which: list[int]) -> those that it has left as they are
PyObject* clean(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *tensors, *which;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &tensors, &PyList_Type, &which)) {
    return nullptr;
  }
  Found found;
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(which); ++k) {
    Py_ssize_t i;
    const Py_ssize_t size = PyList_GET_SIZE(tensors);
    if (!read_index(PyList_GET_ITEM(which, k), size, "tensor", i)) return nullptr;
    PyObject* object = PyList_GET_ITEM(tensors, i);
    if (!THPVariable_Check(object)) {
      return PyErr_Format(PyExc_TypeError, "%R is no tensor", object);
    }
    // The list holds the object, but letting go of a graph may run any code.
    const at::Tensor t = THPVariable_Unpack(object);
    const auto* of_autograd = torch::autograd::impl::get_autograd_meta(t);
    const bool changed = is_changed(object, t);
    if (!changed && (!of_autograd || has_nothing(*of_autograd))) continue;
    if (!changed && has_only_grad_fn(object, *of_autograd)) {
      std::optional<c10::InferenceMode> normal;
      if (c10::InferenceMode::is_enabled()) normal.emplace(false);  // where detach_() does nothing
      t.detach_();
    } else if (!found.add(i)) {
      return nullptr;
    }
  }
  return found.take();
  END_HANDLE_TH_ERRORS
}

// ---- A cached output that is held when its memory is reused: CudaPool.replace().

// replace(tensor, twin, message: str) -> Tensor
PyObject* replace(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *held, *like;
  const char* message;
  if (!PyArg_ParseTuple(args, "OOs", &held, &like, &message)) return nullptr;
  if (!THPVariable_Check(held) || !THPVariable_Check(like)) {
    return PyErr_Format(PyExc_TypeError, "%R or %R is no tensor", held, like);
  }
  const at::Tensor& tensor = THPVariable_Unpack(held);
  const at::Tensor& twin = THPVariable_Unpack(like);
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled()) normal.emplace(false);
  at::Tensor other = torch::inductor::_reinterpret_tensor(twin, twin.sizes(), twin.strides());
  at::caching::remove_cached_tensor(tensor);
  at::caching::add_cached_tensor(other);
  tensor.unsafeGetTensorImpl()->release_storage_and_set_meta_custom_data_ptr_error_msg_(message);
  return THPVariable_Wrap(std::move(other));
  END_HANDLE_TH_ERRORS
}

// ---- The allocator's counters, of which torch hands out 60 at once, in as many dictionaries.

PyObject* counters(PyObject*, PyObject* device) {
  HANDLE_TH_ERRORS
  const long index = PyLong_AsLong(device);
  if (index == -1 && PyErr_Occurred()) return nullptr;
  const auto stats = c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(index);
  const auto& allocated = stats.allocated_bytes[0];  // of all sizes
  const auto& reserved = stats.reserved_bytes[0];
  return Py_BuildValue(
      "LLLL",
      static_cast<long long>(allocated.current),
      static_cast<long long>(reserved.current),
      static_cast<long long>(allocated.peak),
      static_cast<long long>(reserved.peak));
  END_HANDLE_TH_ERRORS
}

// ---- The module.

PyMethodDef addresses_methods[] = {
    {"equal", reinterpret_cast<PyCFunction>(equal), METH_O, "Whether a list of inputs lies there."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef liveness_methods[] = {
    {"live", reinterpret_cast<PyCFunction>(live), METH_O, "Which of a list of references are."},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef functions[] = {
    {"clean", clean, METH_VARARGS, "Clear what is often left on tensors; the others."},
    {"counters", counters, METH_O, "Bytes allocated, reserved, and the most of each, of a device."},
    {"replace", replace, METH_VARARGS, "Another tensor like a twin; the first cannot be used."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject addresses_type = {PyVarObject_HEAD_INIT(nullptr, 0) "memprof.Addresses"};
PyTypeObject liveness_type = {PyVarObject_HEAD_INIT(nullptr, 0) "memprof.Liveness"};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "memprof_replay", nullptr, -1, functions};

bool add(PyObject* module, const char* name, PyTypeObject& type) {
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  return PyType_Ready(&type) == 0 &&
      PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(&type)) == 0;
}

}  // namespace

PyMODINIT_FUNC PyInit_memprof_replay() {
  addresses_type.tp_basicsize = sizeof(Addresses);
  addresses_type.tp_new = make_addresses;
  addresses_type.tp_dealloc = reinterpret_cast<destructor>(destroy_addresses);
  addresses_type.tp_methods = addresses_methods;
  liveness_type.tp_basicsize = sizeof(Liveness);
  liveness_type.tp_new = make_liveness;
  liveness_type.tp_dealloc = reinterpret_cast<destructor>(destroy_liveness);
  liveness_type.tp_methods = liveness_methods;
  PyObject* made = PyModule_Create(&definition);
  if (made && !(add(made, "Addresses", addresses_type) && add(made, "Liveness", liveness_type))) {
    Py_CLEAR(made);
  }
  return made;
}
