#include "files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "exit_codes.h"
#include "temporary_file.h"

namespace tandem::cli {
namespace {

TEST(OutputFile, TargetAppearsOnlyOnCommit) {
  const TemporaryFile target(".bin");
  target.write("old");
  {
    OutputFile file(target.path());
    file.write("new", 3);
    file.close();
    EXPECT_EQ(target.read(), "old");
    file.commit();
  }
  EXPECT_EQ(target.read(), "new");
}

TEST(OutputFile, LeavesNothingWithoutCommit) {
  const TemporaryFile target(".bin");
  target.write("old");
  const std::string name = std::filesystem::path(target.path()).filename().string();
  {
    OutputFile(target.path()).write("new", 3);
  }
  EXPECT_EQ(target.read(), "old");
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::temp_directory_path())) {
    const std::string other = entry.path().filename().string();
    EXPECT_FALSE(other != name && other.rfind(name, 0) == 0) << other;
  }
}

TEST(OutputFile, WritesThroughSymbolicLinks) {
  const TemporaryFile target(".bin");
  const std::string link = target.path() + ".link";
  target.write("old");
  std::filesystem::create_symlink(target.path(), link);
  OutputFile file(link);
  file.write("new", 3);
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(target.read(), "new");
  std::filesystem::remove(link);
}

TEST(OutputFile, RefusesDevicesAndFolders) {
  EXPECT_THROW(OutputFile("/dev/null"), CliError);
  EXPECT_THROW(OutputFile(std::filesystem::temp_directory_path().string()), CliError);
  EXPECT_THROW(OutputFile("/no such folder/file"), CliError);
}

TEST(InputFile, RefusesWhatIsNoRegularFile) {
  EXPECT_THROW(InputFile("/dev/zero"), CliError);
  EXPECT_THROW(InputFile(std::filesystem::temp_directory_path().string()), CliError);
  EXPECT_THROW(InputFile("/no such file"), CliError);
}

}  // namespace
}  // namespace tandem::cli
