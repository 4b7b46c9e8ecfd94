// SPDX-License-Identifier: BSD-3-Clause
/* Preloaded into a program, lets thread number FAIL_THREAD (counted from 1) of those that C++ code
   starts fail as the system does at its limit. MPI's and BLAS's own threads are C's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef int (*create_function)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  static int count = 0;
  const char* wanted = getenv("FAIL_THREAD");
  Dl_info place;
  /* std::thread's threads all start in libstdc++. */
  if (wanted != NULL && dladdr((void*)run, &place) != 0 && place.dli_fname != NULL &&
      strstr(place.dli_fname, "libstdc++") != NULL && ++count == atoi(wanted))
    return EAGAIN;
  create_function create = (create_function)dlsym(RTLD_NEXT, "pthread_create");
  return create(thread, attributes, run, argument);
}
