// What ThreadSanitizer and AddressSanitizer must be told about fibers. Without them the calls are nothing.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LORAMUX_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define LORAMUX_ASAN 1
#endif

#ifdef LORAMUX_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}
#endif

namespace loramux::gpu {

// While it lives, ThreadSanitizer does not take this thread's locks for an order: streams that share a table are not
// ordered by it, as those of a GPU are not. It ignores the reads too, which the locks do protect.
class HiddenOrder {
 public:
#if defined(__SANITIZE_THREAD__)
  HiddenOrder() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~HiddenOrder() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
#else
  HiddenOrder() {}
#endif
  HiddenOrder(const HiddenOrder&) = delete;
  HiddenOrder& operator=(const HiddenOrder&) = delete;
};

}  // namespace loramux::gpu

// The runner itself is not instrumented, so its compiler says nothing of ThreadSanitizer: the build does.
#ifdef LORAMUX_EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_read16(void* address);
void __tsan_write16(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#define LORAMUX_TSAN_CALL(call) call
#else
#define LORAMUX_TSAN_CALL(call) (void)0
#endif
