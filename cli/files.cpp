#include "files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "exit_codes.h"

namespace tandem::cli {
namespace fs = std::filesystem;

InputFile::InputFile(const std::string& path) : path_(path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) fail("it does not exist or cannot be reached.");
  if (!fs::is_regular_file(status)) fail("it is not a regular file.");
  remaining_ = fs::file_size(path, error);
  stream_.open(path, std::ios::binary);
  if (error || !stream_) fail(std::string("it cannot be opened: ") + std::strerror(errno) + ".");
}

void InputFile::read(void* data, uint64_t bytes) {
  if (bytes > remaining_) fail("it is truncated.");
  stream_.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
  if (!stream_) fail("it cannot be read.");
  remaining_ -= bytes;
}

void InputFile::fail(const std::string& reason) const {
  throw CliError(kFileError, path_ + ": " + reason);
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  std::error_code error;
  // HAZARD: a rename would replace a symbolic link by a file, and, for root, a device such as /dev/null too.
  if (fs::is_symlink(path, error)) path_ = fs::weakly_canonical(path, error).string();
  if (fs::exists(path_, error) && !fs::is_regular_file(path_, error)) fail("it exists and is not a regular file.");
  const std::string temporary_path = path_ + ".tmp" + std::to_string(::getpid());
  stream_.open(temporary_path, std::ios::binary | std::ios::trunc);
  if (!stream_) fail(std::string("it cannot be written: ") + std::strerror(errno) + ".");
  temporary_path_ = temporary_path;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, std::string())),
      stream_(std::move(other.stream_)) {}

OutputFile::~OutputFile() {
  if (temporary_path_.empty()) return;
  stream_.close();
  std::error_code ignored;
  fs::remove(temporary_path_, ignored);
}

void OutputFile::write(const void* data, uint64_t bytes) {
  stream_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  if (!stream_) fail(std::string("it cannot be written: ") + std::strerror(errno) + ".");
}

void OutputFile::close() {
  if (!stream_.is_open()) return;
  stream_.close();
  if (!stream_) fail(std::string("it cannot be written: ") + std::strerror(errno) + ".");
}

void OutputFile::commit() {
  close();
  std::error_code error;
  fs::rename(temporary_path_, path_, error);
  if (error) fail("it cannot be replaced: " + error.message() + ".");
  temporary_path_.clear();
}

void OutputFile::fail(const std::string& reason) const {
  throw CliError(kFileError, path_ + ": " + reason);
}

}  // namespace tandem::cli
