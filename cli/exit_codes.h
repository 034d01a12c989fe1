#pragma once

#include <stdexcept>
#include <string>

namespace tandem::cli {

// What the program returns. `tandem --help` prints this table from kExitCodesHelp.
enum ExitCode : int {
  kOk = 0,
  kVerificationFailed = 1,
  kUsageError = 2,
  kFileError = 3,
  kLibraryRefused = 4,
  kInternalError = 5,
};

inline constexpr const char* kExitCodesHelp =
    "Exit codes:\n"
    "  0  success\n"
    "  1  verification failed\n"
    "  2  usage error: unknown or contradictory options\n"
    "  3  an input or output file cannot be read, written or used\n"
    "  4  the library refused the call\n"
    "  5  internal error\n"
    "Every error is one sentence on stderr that begins with \"tandem: \".";

// Ends the program with `code` after printing the message, which is one sentence.
class CliError : public std::runtime_error {
 public:
  CliError(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

}  // namespace tandem::cli
