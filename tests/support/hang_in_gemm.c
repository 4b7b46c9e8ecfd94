// SPDX-License-Identifier: BSD-3-Clause
/* Preloaded into a program, lets the rank HANG_RANK never come back from its matrix product number
   HANG_PRODUCT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

typedef void (*sgemm_function)(const char*, const char*, const int*, const int*, const int*,
                               const float*, const float*, const int*, const float*, const int*,
                               const float*, float*, const int*);

void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc) {
  static int count = 0;
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  const char* wanted = getenv("HANG_RANK");
  const char* product = getenv("HANG_PRODUCT");
  if (wanted != NULL && product != NULL && (rank != NULL ? atoi(rank) : 0) == atoi(wanted) &&
      ++count == atoi(product))
    for (;;) sleep(1);
  sgemm_function sgemm = (sgemm_function)dlsym(RTLD_NEXT, "sgemm_");
  sgemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
