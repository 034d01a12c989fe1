// tandem._core: the C interface for Python, in integers. Tensors are an address, a dtype number, sizes and strides;
// streams and workspaces are addresses. What those belong to stays alive because the caller holds it during the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "keywords.h"
#include "params.h"
#include "tandem/tandem.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

using DevicePair = std::pair<int32_t, int32_t>;

[[noreturn]] void raise_status(tandem_status status) {
  nb::object error = nb::module_::import_("tandem.errors")
                         .attr("error_from_status")(status, tandem_status_name(status), tandem_last_error());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void raise_if_error(tandem_status status) {
  if (status != TANDEM_OK) raise_status(status);
}

class HostWorkspace {
 public:
  HostWorkspace(uint64_t bytes, uint64_t alignment)
      : alignment_(static_cast<std::align_val_t>(alignment)), data_(::operator new(bytes, alignment_)) {}
  ~HostWorkspace() { ::operator delete(data_, alignment_); }
  HostWorkspace(const HostWorkspace&) = delete;
  HostWorkspace& operator=(const HostWorkspace&) = delete;
  void* data() const { return data_; }

 private:
  std::align_val_t alignment_;
  void* data_;
};

template <class Params>
void check(const Params& params) {
  raise_if_error(calls(params).check(&params));
}

template <class Params>
std::pair<uint64_t, uint64_t> workspace(const Params& params) {
  uint64_t bytes = 0;
  uint64_t alignment = 1;
  raise_if_error(calls(params).workspace(&params, &bytes, &alignment));
  return {bytes, alignment};
}

template <class Params>
void run(Params& params) {
  std::unique_ptr<HostWorkspace> owned;
  if (params.exec.device.type == TANDEM_CPU && params.exec.workspace == nullptr) {
    const auto [bytes, alignment] = workspace(params);
    if (bytes > 0) {
      owned = std::make_unique<HostWorkspace>(bytes, alignment);
      params.exec.workspace = owned->data();
      params.exec.workspace_bytes = bytes;
    }
  }
  tandem_status status = TANDEM_OK;
  {
    nb::gil_scoped_release release;
    status = calls(params).run(&params);
  }
  raise_if_error(status);
}

// Reads the keyword arguments into the dense or the packed struct and hands it to `action`.
template <class Dense, class Packed, class Action>
auto with_params(const char* function, nb::kwargs arguments, Action action) {
  Keywords keywords(function, std::move(arguments));
  if (keywords.has("cu_seqlens_q") || keywords.has("cu_seqlens_k")) {
    auto params = read_params<Packed>(keywords);
    return action(params);
  }
  auto params = read_params<Dense>(keywords);
  return action(params);
}

template <class Dense, class Packed>
void define_operation(nb::module_& module, const std::string& name, const char* document) {
  // The names must outlive the functions: nanobind copies them, the error messages do not.
  static const std::string run_name = name, check_name = name + "_check", workspace_name = name + "_workspace";
  module.def(
      run_name.c_str(),
      [](nb::kwargs arguments) {
        with_params<Dense, Packed>(run_name.c_str(), std::move(arguments), [](auto& params) { run(params); });
      },
      document);
  module.def(
      check_name.c_str(),
      [](nb::kwargs arguments) {
        with_params<Dense, Packed>(check_name.c_str(), std::move(arguments), [](auto& params) { check(params); });
      },
      "Raises what the run would refuse. Tensors may have the address 0.");
  module.def(
      workspace_name.c_str(),
      [](nb::kwargs arguments) {
        return with_params<Dense, Packed>(workspace_name.c_str(), std::move(arguments),
                                          [](auto& params) { return workspace(params); });
      },
      "(bytes, alignment) of the scratch memory that the run needs. Tensors may have the address 0.");
}

// Copies a sequence of ints; returns their number. PERF: torch's and NumPy's tuples are read in place.
int32_t read_entries(nb::handle sequence, int64_t* entries) {
  const auto items = nb::steal(PySequence_Fast(sequence.ptr(), "Tensor: shape and stride must be sequences of ints"));
  if (!items.is_valid()) throw nb::python_error();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
  if (count > TANDEM_MAX_NDIM) throw nb::value_error("Tensor: shape and stride have at most 6 entries");
  for (Py_ssize_t i = 0; i < count; ++i) {
    entries[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items.ptr(), i));
    if (entries[i] == -1 && PyErr_Occurred()) throw nb::python_error();
  }
  return static_cast<int32_t>(count);
}

tandem_tensor make_tensor(uintptr_t data, int32_t dtype, nb::handle shape, nb::handle stride) {
  tandem_tensor tensor = {};
  tensor.data = reinterpret_cast<void*>(data);
  tensor.dtype = dtype;
  tensor.ndim = read_entries(shape, tensor.shape);
  if (read_entries(stride, tensor.stride) != tensor.ndim) {
    throw nb::value_error("Tensor: shape and stride must have the same length");
  }
  return tensor;
}

void define_tensor(nb::module_& module) {
  const auto entries = [](const tandem_tensor& tensor, const int64_t* values) {
    return nb::tuple(nb::cast(std::vector<int64_t>(values, values + tensor.ndim)));
  };
  nb::class_<tandem_tensor>(module, "Tensor", "A view of memory: address, dtype number, sizes, strides in elements.")
      .def(
          "__init__",
          [](tandem_tensor* self, uintptr_t data, int32_t dtype, nb::handle shape, nb::handle stride) {
            new (self) tandem_tensor(make_tensor(data, dtype, shape, stride));
          },
          nb::arg("data"), nb::arg("dtype"), nb::arg("shape"), nb::arg("stride"))
      .def_prop_ro("data", [](const tandem_tensor& self) { return reinterpret_cast<uintptr_t>(self.data); })
      .def_ro("dtype", &tandem_tensor::dtype)
      .def_prop_ro("shape", [entries](const tandem_tensor& self) { return entries(self, self.shape); })
      .def_prop_ro("stride", [entries](const tandem_tensor& self) { return entries(self, self.stride); });
}

// Number of tandem.h for an element type of DLPack, or TANDEM_DTYPE_NONE.
int32_t dtype_number(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return TANDEM_DTYPE_NONE;
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float:
      return dtype.bits == 64   ? TANDEM_FP64
             : dtype.bits == 32 ? TANDEM_FP32
             : dtype.bits == 16 ? TANDEM_FP16
                                : TANDEM_DTYPE_NONE;
    case Code::Bfloat: return dtype.bits == 16 ? TANDEM_BF16 : TANDEM_DTYPE_NONE;
    case Code::Float8_E4M3FN: return TANDEM_E4M3;
    case Code::Float8_E5M2: return TANDEM_E5M2;
    case Code::Int: return dtype.bits == 32 ? TANDEM_INT32 : TANDEM_DTYPE_NONE;
    default: return TANDEM_DTYPE_NONE;
  }
}

// An array of another library, held through its DLPack capsule for as long as the View lives.
struct View {
  nb::ndarray<nb::ro> array;
};

View make_view(nb::handle capsule, bool writable) {
  View view;
  nb::ndarray<> as_writable;
  const bool imported = writable ? nb::try_cast(capsule, as_writable) : nb::try_cast(capsule, view.array);
  if (!imported) throw nb::type_error(writable ? "the array is read-only" : "not a DLPack capsule");
  if (writable) view.array = nb::ndarray<nb::ro>(as_writable);
  return view;
}

void define_view(nb::module_& module) {
  const auto entries = [](const View& view, auto entry) {
    nb::list values;
    for (size_t axis = 0; axis < view.array.ndim(); ++axis) values.append((view.array.*entry)(axis));
    return nb::tuple(values);
  };
  using Array = nb::ndarray<nb::ro>;
  nb::class_<View>(module, "View", "An array of another library, imported from its DLPack capsule.")
      .def(
          "__init__",
          [](View* self, nb::handle capsule, bool writable) { new (self) View(make_view(capsule, writable)); },
          nb::arg("capsule"), nb::arg("writable") = false)
      .def_prop_ro("data", [](const View& self) { return reinterpret_cast<uintptr_t>(self.array.data()); })
      .def_prop_ro("dtype", [](const View& self) { return dtype_number(self.array.dtype()); })
      .def_prop_ro("shape", [entries](const View& self) { return entries(self, &Array::shape); })
      .def_prop_ro("stride", [entries](const View& self) { return entries(self, &Array::stride); });
}

tandem_device to_device(DevicePair device) {
  return {device.first, device.second};
}

void define_queries(nb::module_& module) {
  module.def("version", &tandem_version, "Version of the library, such as '0.1.0'.");
  module.def("dtype_name", &tandem_dtype_name, nb::arg("dtype"));
  module.def(
      "prepare", [](DevicePair device) { raise_if_error(tandem_prepare(to_device(device))); }, nb::arg("device"),
      "Does once what a first call on this device would do, so that later ones can be captured in a CUDA graph.");
  module.def("backend_name", &tandem_backend_name, nb::arg("backend"));
  module.def(
      "backend_available",
      [](int32_t backend, DevicePair device) {
        const bool available = tandem_backend_available(backend, to_device(device)) == TANDEM_OK;
        return std::make_pair(available, std::string(available ? "" : tandem_last_error()));
      },
      nb::arg("backend"), nb::arg("device"), "(True, '') or (False, why not).");
  module.def(
      "backend_select",
      [](int32_t requested, DevicePair device) {
        int32_t backend = TANDEM_BACKEND_AUTO;
        raise_if_error(tandem_backend_select(requested, to_device(device), &backend));
        return backend;
      },
      nb::arg("requested"), nb::arg("device"), "The backend that a call with these settings runs on.");
  module.def(
      "backend_description",
      [](int32_t backend, DevicePair device) {
        return std::string(tandem_backend_description(backend, to_device(device)));
      },
      nb::arg("backend"), nb::arg("device"), "One line about what the backend runs on, or why it cannot.");
}

void define_constants(nb::module_& module) {
  const std::pair<const char*, int32_t> constants[] = {
      {"FP64", TANDEM_FP64},
      {"FP32", TANDEM_FP32},
      {"FP16", TANDEM_FP16},
      {"BF16", TANDEM_BF16},
      {"E4M3", TANDEM_E4M3},
      {"E5M2", TANDEM_E5M2},
      {"INT32", TANDEM_INT32},
      {"CPU", TANDEM_CPU},
      {"CUDA", TANDEM_CUDA},
      {"BACKEND_AUTO", TANDEM_BACKEND_AUTO},
      {"BACKEND_REFERENCE", TANDEM_BACKEND_REFERENCE},
      {"BACKEND_TILED", TANDEM_BACKEND_TILED},
      {"BACKEND_SM90", TANDEM_BACKEND_SM90},
  };
  for (const auto& [name, value] : constants) module.attr(name) = value;
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The C interface of Tandem in integers; see _core.pyi and tandem.h.";
  define_constants(module);
  define_tensor(module);
  define_view(module);
  define_queries(module);
  define_operation<tandem_forward_params, tandem_varlen_forward_params>(
      module, "forward", "Attention; packed if cu_seqlens_q or cu_seqlens_k is given.");
  define_operation<tandem_backward_params, tandem_varlen_backward_params>(
      module, "backward", "The gradients of the forward with the same arguments.");
  define_operation<tandem_merge_params, tandem_merge_params>(module, "merge",
                                                             "Joins partial results over disjoint sets of keys.");
  define_operation<tandem_quantize_fp8_params, tandem_quantize_fp8_params>(
      module, "quantize_fp8", "Rounds q, k or v to e4m3; packed if cu_seqlens is given.");
}

}  // namespace tandem::python
