// What users are told where CUDA cannot be used, and what to do. No test needs a GPU or uses one.
#include "gpu/cuda_plugin.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace loramux::gpu {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Fake(const std::string& name) { return std::string(LORAMUX_FAKES) + "/" + name + ".so"; }

// The error of opening GPU `index` with this driver and plugin.
Error OpeningFails(const std::string& driver, const std::string& plugin, int index = 0) {
  const auto opened = OpenCudaPlugin({.index = index}, {.driver = driver, .plugin = plugin});
  return opened.ok() ? Error{ErrorCode::kInternal, "it was opened"} : opened.error();
}

TEST(CudaPlugin, NoDriver) {
  const Error error = OpeningFails("/none/libcuda.so.1", "");
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  // Which of the two it is depends on the machine.
  EXPECT_THAT(error.message, testing::AnyOf(HasSubstr("this machine has no NVIDIA GPU"),
                                            AllOf(HasSubstr("no driver"), HasSubstr("580"))));
}

TEST(CudaPlugin, DriverTooOld) {
  const Error error = OpeningFails(Fake("fake_driver_old"), "");
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, AllOf(HasSubstr("too old"), HasSubstr("CUDA 12.4"), HasSubstr("driver 580 or later")));
}

TEST(CudaPlugin, DriverDoesNotStart) {
  EXPECT_THAT(OpeningFails(Fake("fake_driver_broken"), "").message,
              AllOf(HasSubstr("803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), HasSubstr("restart the machine")));
}

TEST(CudaPlugin, NoGpuVisible) {
  EXPECT_THAT(OpeningFails(Fake("fake_driver_hidden"), "").message,
              AllOf(HasSubstr("shows no GPU"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(CudaPlugin, NoGpuOfThisIndex) {
  const Error error = OpeningFails(Fake("fake_driver"), "", 2);
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message, "there is no GPU 2: this machine has 2, counted from 0");
}

TEST(CudaPlugin, NoPlugin) {
  const Error error = OpeningFails(Fake("fake_driver"), "/none/libloramux_cuda.so");
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, AllOf(HasSubstr("no CUDA plugin"), HasSubstr("/none/libloramux_cuda.so"),
                                   HasSubstr("make cuda"), HasSubstr("LORAMUX_CUDA_PLUGIN")));
}

TEST(CudaPlugin, NotALibrary) {
  EXPECT_THAT(OpeningFails(Fake("fake_driver"), std::string(LORAMUX_SOURCE_DIR) + "/README.md").message,
              AllOf(HasSubstr("no CUDA plugin"), HasSubstr("README.md"), HasSubstr("make cuda")));
}

TEST(CudaPlugin, AnotherLibrary) {
  EXPECT_THAT(OpeningFails(Fake("fake_driver"), Fake("fake_driver_old")).message,
              HasSubstr("is not the CUDA plugin of loramux"));
}

TEST(CudaPlugin, AnotherBuild) {
  const auto is_of_another_build = AllOf(HasSubstr("of another build (0.0.0-other)"), HasSubstr("make build cuda"));
  EXPECT_THAT(OpeningFails(Fake("fake_driver"), Fake("fake_plugin_other")).message, is_of_another_build);
  EXPECT_THAT(FindCudaPlugin({.plugin = Fake("fake_plugin_other")}).error().message, is_of_another_build);
}

TEST(CudaPlugin, DescribesGpusByTheDriverAlone) {
  const auto gpus = FindCudaGpus({.driver = Fake("fake_driver")});
  ASSERT_TRUE(gpus.ok()) << gpus.error().message;
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ(gpus->at(0).name, "Fake A100");
  EXPECT_EQ(gpus->at(1).name, "Fake H100");
  EXPECT_EQ(gpus->at(1).memory, std::int64_t{2} << 30);
  EXPECT_EQ(gpus->at(1).major, 9);
  EXPECT_EQ(gpus->at(1).minor, 0);
}

}  // namespace
}  // namespace loramux::gpu
