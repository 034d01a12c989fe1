#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace tandem::cli {

// Reads a regular file of known size. Every failure is a CliError(kFileError) that names the file.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  const std::string& path() const { return path_; }
  uint64_t remaining() const { return remaining_; }
  void read(void* data, uint64_t bytes);  // an error if fewer remain
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  std::string path_;
  std::ifstream stream_;
  uint64_t remaining_ = 0;
};

// Writes beside the target and takes its place on commit(), so that no reader ever sees half a file. Without commit()
// the target is untouched and the temporary file goes away.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  void write(const void* data, uint64_t bytes);
  void close();   // every byte has reached the file system; may be called before a group of commits
  void commit();  // close, then rename

 private:
  [[noreturn]] void fail(const std::string& reason) const;

  std::string path_;
  std::string temporary_path_;  // "" once committed or moved from
  std::ofstream stream_;
};

}  // namespace tandem::cli
