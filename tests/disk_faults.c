// A library to preload into a program under test: it makes disk operations fail. It stands between the program and the
// functions that read, write, sync and open files, and makes some calls fail as a failing disk would.
//
// Environment:
//   LORAMUX_DISK_FAULTS      path of the control file. While it exists, its rules hold. Every call reads it, so replace
//                            it by renaming. Each line: KIND PROBABILITY PREFIX, where PREFIX is the beginning of the
//                            files' absolute paths (to the end of the line), and KIND is one of
//                              open         opening fails with EIO
//                              read         a read fails with EIO
//                              short_read   a read returns a part of the bytes, at least one
//                              write        a write fails with EIO and writes nothing
//                              full         a write fails with ENOSPC
//                              short_write  a write writes a part of the bytes, at least one
//                              sync         fsync or fdatasync fails with EIO and syncs nothing
//   LORAMUX_DISK_FAULTS_LOG  path of a file that gets one line for each fault: KIND PATH.
//
// /proc/self/fd gives the path of a descriptor, so the library keeps no state of descriptors. With a sanitizer preload
// its runtime before this library: the runtime's wrappers then call these functions.
#define _GNU_SOURCE
#include <sys/types.h>
#include <sys/uio.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

// The function that this library's function of that name hides. Looked up at each call, which a test can afford.
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { kMaxControlBytes = 4096 };

// Uniform in [0, 1). Threads draw from one sequence.
static double Draw(void) {
  static _Atomic uint64_t counter;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t x = atomic_fetch_add(&counter, 1) * 0x9e3779b97f4a7c15u + (uint64_t)now.tv_nsec + (uint64_t)getpid();
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

// Reads the control file as text; false if there is none. Keeps errno.
static bool ReadControl(char* text) {
  const char* path = getenv("LORAMUX_DISK_FAULTS");
  if (path == NULL) return false;
  const int saved = errno;
  const int file = NEXT(open)(path, O_RDONLY | O_CLOEXEC);
  ssize_t size = -1;
  if (file >= 0) {
    size = NEXT(read)(file, text, kMaxControlBytes - 1);
    close(file);
  }
  text[size > 0 ? size : 0] = '\0';
  errno = saved;
  return size > 0;
}

// The probability that `kind` fails at `path`, by the first rule that matches.
static double Probability(char* rules, const char* kind, const char* path) {
  char* rest = NULL;
  for (char* line = strtok_r(rules, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    char name[16];
    double probability = 0;
    int prefix = 0;
    if (sscanf(line, "%15s %lf %n", name, &probability, &prefix) != 2 || prefix == 0) continue;
    if (strcmp(name, kind) == 0 && strncmp(path, line + prefix, strlen(line + prefix)) == 0) return probability;
  }
  return 0;
}

static void Log(const char* kind, const char* path) {
  const char* log = getenv("LORAMUX_DISK_FAULTS_LOG");
  if (log == NULL) return;
  char line[PATH_MAX + 32];
  const int length = snprintf(line, sizeof(line), "%s %s\n", kind, path);
  const int file = NEXT(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || NEXT(write)(file, line, (size_t)length) != length) abort();  // a fault that is not counted
  close(file);
}

// True if this call must fail in this way. Then it logs the fault.
static bool FailsAt(const char* kind, const char* path) {
  char rules[kMaxControlBytes];
  if (!ReadControl(rules)) return false;
  const double probability = Probability(rules, kind, path);
  if (probability <= 0 || Draw() >= probability) return false;
  const int saved = errno;
  Log(kind, path);
  errno = saved;
  return true;
}

static bool Fails(const char* kind, int descriptor) {
  if (getenv("LORAMUX_DISK_FAULTS") == NULL) return false;
  const int saved = errno;
  char link[40], path[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  errno = saved;
  if (length <= 0 || path[0] != '/') return false;  // a socket, a pipe
  path[length] = '\0';
  return FailsAt(kind, path);
}

static ssize_t Failure(int error) {
  errno = error;
  return -1;
}

// 0, or the error with which a write fails.
static int WriteError(int descriptor) {
  if (Fails("write", descriptor)) return EIO;
  return Fails("full", descriptor) ? ENOSPC : 0;
}

// The number of bytes, out of `size`, that a call moves.
static size_t Part(const char* kind, int descriptor, size_t size) {
  if (size < 2 || !Fails(kind, descriptor)) return size;
  return 1 + (size_t)(Draw() * (double)(size - 1));
}

// ---- The functions that replace those of the system ----

EXPORT ssize_t read(int descriptor, void* data, size_t size) {
  if (Fails("read", descriptor)) return Failure(EIO);
  return NEXT(read)(descriptor, data, Part("short_read", descriptor, size));
}

EXPORT ssize_t pread(int descriptor, void* data, size_t size, off_t offset) {
  if (Fails("read", descriptor)) return Failure(EIO);
  return NEXT(pread)(descriptor, data, Part("short_read", descriptor, size), offset);
}

EXPORT ssize_t pread64(int descriptor, void* data, size_t size, off64_t offset) {
  if (Fails("read", descriptor)) return Failure(EIO);
  return NEXT(pread64)(descriptor, data, Part("short_read", descriptor, size), offset);
}

EXPORT ssize_t write(int descriptor, const void* data, size_t size) {
  const int error = WriteError(descriptor);
  if (error != 0) return Failure(error);
  return NEXT(write)(descriptor, data, Part("short_write", descriptor, size));
}

EXPORT ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  const int error = WriteError(descriptor);
  if (error != 0) return Failure(error);
  return NEXT(pwrite)(descriptor, data, Part("short_write", descriptor, size), offset);
}

EXPORT ssize_t pwrite64(int descriptor, const void* data, size_t size, off64_t offset) {
  const int error = WriteError(descriptor);
  if (error != 0) return Failure(error);
  return NEXT(pwrite64)(descriptor, data, Part("short_write", descriptor, size), offset);
}

EXPORT ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  const int error = WriteError(descriptor);
  if (error != 0) return Failure(error);
  return NEXT(writev)(descriptor, parts, count);
}

EXPORT ssize_t pwritev(int descriptor, const struct iovec* parts, int count, off_t offset) {
  const int error = WriteError(descriptor);
  if (error != 0) return Failure(error);
  return NEXT(pwritev)(descriptor, parts, count, offset);
}

EXPORT int fsync(int descriptor) {
  if (Fails("sync", descriptor)) return (int)Failure(EIO);
  return NEXT(fsync)(descriptor);
}

EXPORT int fdatasync(int descriptor) {
  if (Fails("sync", descriptor)) return (int)Failure(EIO);
  return NEXT(fdatasync)(descriptor);
}

static mode_t ModeOf(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

#define DEFINE_OPEN(name)                                \
  EXPORT int name(const char* path, int flags, ...) {    \
    va_list arguments;                                   \
    va_start(arguments, flags);                          \
    const mode_t mode = ModeOf(flags, arguments);        \
    va_end(arguments);                                   \
    if (FailsAt("open", path)) return (int)Failure(EIO); \
    return NEXT(name)(path, flags, mode);                \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

// A path relative to `folder` matches no rule, because rules have absolute paths.
#define DEFINE_OPENAT(name)                                       \
  EXPORT int name(int folder, const char* path, int flags, ...) { \
    va_list arguments;                                            \
    va_start(arguments, flags);                                   \
    const mode_t mode = ModeOf(flags, arguments);                 \
    va_end(arguments);                                            \
    if (FailsAt("open", path)) return (int)Failure(EIO);          \
    return NEXT(name)(folder, path, flags, mode);                 \
  }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
