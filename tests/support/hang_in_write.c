// SPDX-License-Identifier: BSD-3-Clause
/* Preloaded into a program, lets no call of HANG_CALL (fsync or pwrite) on a file come back whose
   path holds HANG_FILE, as on a disk that hangs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void hang_if_wanted(const char* call, int descriptor) {
  const char* wanted = getenv("HANG_CALL");
  const char* file = getenv("HANG_FILE");
  char link[64], path[4096];
  if (wanted == NULL || file == NULL || strcmp(wanted, call) != 0) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = '\0';
  if (strstr(path, file) == NULL) return;
  for (;;) sleep(1);
}

int fsync(int descriptor) {
  typedef int (*function)(int);
  hang_if_wanted("fsync", descriptor);
  return ((function)dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  typedef ssize_t (*function)(int, const void*, size_t, off_t);
  hang_if_wanted("pwrite", descriptor);
  return ((function)dlsym(RTLD_NEXT, "pwrite"))(descriptor, bytes, size, offset);
}

ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) {
  typedef ssize_t (*function)(int, const void*, size_t, off64_t);
  hang_if_wanted("pwrite", descriptor);
  return ((function)dlsym(RTLD_NEXT, "pwrite64"))(descriptor, bytes, size, offset);
}
