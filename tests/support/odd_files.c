// SPDX-License-Identifier: BSD-3-Clause
/* Preloaded into a program, makes a file system of another kind:
   GRANT_LOCKS: every lock is granted, as where locks reach no further than a machine.
   FAIL_SYNC: fsync() fails of files and directories whose path ends so; FAIL_SYNC_COUNT: only so
   many times.
   STALE_READ: pread() fails of files whose path ends so, as when the file system has forgotten the
   open file; STALE_READ_COUNT: only so many times.
   SLOW_REMOVAL: each removal in a directory whose path holds this text lasts 0.3 s. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void path_of(int descriptor, char* path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, size - 1);
  path[length > 0 ? length : 0] = '\0';
}

static int control(const char* name, int descriptor, int command, void* argument) {
  typedef int (*function)(int, int, ...);
  if (command == F_OFD_SETLK && getenv("GRANT_LOCKS") != NULL) return 0;
  return ((function)dlsym(RTLD_NEXT, name))(descriptor, command, argument);
}

int fcntl(int descriptor, int command, ...) {
  va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  return control("fcntl", descriptor, command, argument);
}

int fcntl64(int descriptor, int command, ...) {
  va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  return control("fcntl64", descriptor, command, argument);
}

static int ends_so(int descriptor, const char* wanted) {
  char path[4096];
  path_of(descriptor, path, sizeof path);
  const size_t length = strlen(path), ending = strlen(wanted);
  return length >= ending && strcmp(path + length - ending, wanted) == 0;
}

int fsync(int descriptor) {
  typedef int (*function)(int);
  static int failures = 0;
  const char* const wanted = getenv("FAIL_SYNC");
  const char* const count = getenv("FAIL_SYNC_COUNT");
  if (wanted != NULL && (count == NULL || failures < atoi(count)) && ends_so(descriptor, wanted)) {
    ++failures;
    errno = EIO;
    return -1;
  }
  return ((function)dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

static ssize_t read_at(const char* name, int descriptor, void* bytes, size_t size, off_t offset) {
  typedef ssize_t (*function)(int, void*, size_t, off_t);
  static int failures = 0;
  const char* const wanted = getenv("STALE_READ");
  const char* const count = getenv("STALE_READ_COUNT");
  if (wanted != NULL && (count == NULL || failures < atoi(count)) && ends_so(descriptor, wanted)) {
    ++failures;
    errno = ESTALE;
    return -1;
  }
  return ((function)dlsym(RTLD_NEXT, name))(descriptor, bytes, size, offset);
}

ssize_t pread(int descriptor, void* bytes, size_t size, off_t offset) {
  return read_at("pread", descriptor, bytes, size, offset);
}

ssize_t pread64(int descriptor, void* bytes, size_t size, off_t offset) {
  return read_at("pread64", descriptor, bytes, size, offset);
}

int unlinkat(int directory, const char* name, int flags) {
  typedef int (*function)(int, const char*, int);
  const char* const wanted = getenv("SLOW_REMOVAL");
  char path[4096];
  if (wanted != NULL) {
    path_of(directory, path, sizeof path);
    if (strstr(path, wanted) != NULL) usleep(300000);
  }
  return ((function)dlsym(RTLD_NEXT, "unlinkat"))(directory, name, flags);
}
