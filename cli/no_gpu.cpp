#include "exit_codes.h"
#include "gpu.h"

namespace tandem::cli {
namespace {

[[noreturn]] void refuse() {
  throw CliError(kLibraryRefused, "--device cuda: this program was built without CUDA.");
}

}  // namespace

GpuBuffer::GpuBuffer(int32_t device, uint64_t bytes) : device_(device), bytes_(bytes) {
  refuse();
}
GpuBuffer::GpuBuffer(GpuBuffer&& other) noexcept : device_(other.device_), bytes_(other.bytes_), data_(other.data_) {}
GpuBuffer::~GpuBuffer() = default;
void GpuBuffer::upload(const void*) {
  refuse();
}
void GpuBuffer::download(void*) const {
  refuse();
}
void wait_for_gpu(int32_t) {
  refuse();
}
std::vector<double> time_on_gpu(int32_t, int, const std::function<void()>&) {
  refuse();
}
std::string gpu_name(int32_t) {
  refuse();
}

}  // namespace tandem::cli
