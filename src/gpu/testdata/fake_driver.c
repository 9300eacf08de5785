// In the place of NVIDIA's libcuda.so.1: FAKE_COUNT GPUs that cannot compute.
#include <stddef.h>
#include <string.h>

int cuDriverGetVersion(int* version) {
  *version = FAKE_VERSION;
  return 0;
}
int cuInit(unsigned flags) { return flags == 0 ? FAKE_INIT : 1; }
int cuDeviceGetCount(int* count) {
  *count = FAKE_COUNT;
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetName(char* name, int bytes, int device) {
  strncpy(name, device == 0 ? "Fake A100" : "Fake H100", (size_t)bytes);
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = (size_t)(device + 1) << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 8 + device : 0;
  return 0;
}
int cuGetErrorName(int error, const char** name) {
  *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
  return error == 803 ? 0 : 1;
}
