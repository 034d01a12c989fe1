#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tandem/tandem.h"

namespace tandem::python {

// The Python string of a literal, made once. PERF: a dict finds an interned string by its address and stored hash; some
// forty new strings a call took longer than a small problem. Guarded by the GIL.
inline PyObject* interned(const char* literal) {
  static std::unordered_map<const char*, PyObject*> strings;
  PyObject*& string = strings[literal];
  if (string == nullptr) string = PyUnicode_InternFromString(literal);
  if (string == nullptr) throw nanobind::python_error();
  return string;
}

// The keyword arguments of one call. Three functions share each list of some forty arguments, so they are taken apart
// here, by name, instead of in forty-argument signatures. An argument that is None counts as left out.
class Keywords {
 public:
  Keywords(const char* function, nanobind::kwargs arguments) : function_(function), arguments_(std::move(arguments)) {
    known_.reserve(64);
  }

  bool has(const char* name) const { return look_up(name).is_valid(); }

  // Names that the call may carry although nothing reads them.
  void allow(const char* name) {
    known_.push_back(name);
    given_ += PyDict_Contains(arguments_.ptr(), interned(name));
  }

  template <class T>
  T get(const char* name, const char* expected, T fallback) {
    const nanobind::handle value = find(name);
    if (!value.is_valid()) return fallback;
    T result{};
    if (!nanobind::try_cast<T>(value, result)) throw wrong_type(name, expected, value);
    return result;
  }

  int64_t integer(const char* name) { return get<int64_t>(name, "an int of 64 bits", 0); }
  int32_t small_integer(const char* name) { return get<int32_t>(name, "an int of 32 bits", 0); }
  int32_t flag(const char* name) { return get<bool>(name, "a bool", false) ? 1 : 0; }
  double number(const char* name) { return get<double>(name, "a float", 0.0); }
  void* address(const char* name) { return reinterpret_cast<void*>(get<uintptr_t>(name, "an address", 0)); }

  tandem_tensor optional_tensor(const char* name) {
    const nanobind::handle value = find(name);
    if (!value.is_valid()) return {};
    if (!nanobind::isinstance<tandem_tensor>(value)) throw wrong_type(name, "a Tensor", value);
    return *nanobind::inst_ptr<tandem_tensor>(value);
  }

  tandem_tensor tensor(const char* name) {
    if (!has(name)) throw nanobind::type_error((prefix() + "missing argument '" + name + "'").c_str());
    return optional_tensor(name);
  }

  // Refuses arguments that nothing has read.
  void finish() const {
    if (static_cast<size_t>(given_) == arguments_.size()) return;
    for (const auto& [key, value] : arguments_) {
      const std::string name = nanobind::cast<std::string>(key);
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      throw nanobind::type_error((prefix() + "unexpected argument '" + name + "'").c_str());
    }
  }

 private:
  nanobind::handle look_up(const char* name) const {
    PyObject* value = PyDict_GetItem(arguments_.ptr(), interned(name));
    return value == Py_None ? nanobind::handle() : nanobind::handle(value);
  }

  nanobind::handle find(const char* name) {
    known_.push_back(name);
    PyObject* value = PyDict_GetItem(arguments_.ptr(), interned(name));
    given_ += value != nullptr;
    return value == Py_None ? nanobind::handle() : nanobind::handle(value);
  }

  std::string prefix() const { return std::string(function_) + ": "; }

  nanobind::builtin_exception wrong_type(const char* name, const char* expected, nanobind::handle value) const {
    const std::string found = nanobind::str(value.type().attr("__name__")).c_str();
    return nanobind::type_error((prefix() + "argument '" + name + "' must be " + expected + ", not " + found).c_str());
  }

  const char* function_;
  nanobind::kwargs arguments_;
  std::vector<const char*> known_;  // each name once
  int given_ = 0;                   // how many of them the call has
};

}  // namespace tandem::python
