#include "device.h"

namespace tandem::optest {

void CallMemory::set_place(tandem_execution& exec) const {
  exec.device = device_ ? device_->id() : tandem_device{TANDEM_CPU, 0};
  exec.stream = device_ ? device_->stream() : nullptr;
}

tandem_tensor CallMemory::view(HostTensor& tensor) {
  return tensor.present() ? tensor.view_in(address(tensor.storage())) : tandem_tensor{};
}

uint8_t* CallMemory::address(std::vector<uint8_t>& storage) {
  if (!device_) return storage.data();
  copies_.emplace_back(&storage, device_->upload(storage.data(), storage.size()));
  return copies_.back().second;
}

void CallMemory::bring_home() {
  for (const auto& [storage, copy] : copies_) device_->download(storage->data(), copy, storage->size());
}

}  // namespace tandem::optest
