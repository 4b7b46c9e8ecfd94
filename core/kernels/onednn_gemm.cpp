// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/onednn_gemm.hpp"

#include "core/base/error.hpp"

#ifdef DELTAPIPE_HAVE_ONEDNN

#include <dlfcn.h>

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

namespace deltapipe::onednn {

namespace {

using Kind = std::tuple<Transpose, Transpose, ProductShape, bool>;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// A matrix of which memory has the rows or, turned, the columns.
dnnl::memory::desc description(int rows, int columns, dnnl::memory::data_type type, Transpose op) {
  const dnnl::memory::dims strides =
      op == Transpose::yes ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1};
  return {{rows, columns}, type, strides};
}

/// Code for one kind of product, with memory objects that operands are set into.
struct Product {
  dnnl::matmul matmul;
  dnnl::memory a, b, c;

  explicit Product(const Kind& kind) {
    const auto& [op_a, op_b, shape, accumulates] = kind;
    using Type = dnnl::memory::data_type;
    const auto desc_a = description(shape.M, shape.K, Type::bf16, op_a);
    const auto desc_b = description(shape.K, shape.N, Type::bf16, op_b);
    const auto desc_c = description(shape.M, shape.N, Type::f32, Transpose::no);
    dnnl::primitive_attr attributes;
    if (accumulates) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc made(engine(), desc_a, desc_b, desc_c, attributes);
#else
    const dnnl::matmul::primitive_desc made(dnnl::matmul::desc(desc_a, desc_b, desc_c), attributes,
                                            engine());
#endif
    matmul = dnnl::matmul(made);
    a = dnnl::memory(desc_a, engine(), DNNL_MEMORY_NONE);
    b = dnnl::memory(desc_b, engine(), DNNL_MEMORY_NONE);
    c = dnnl::memory(desc_c, engine(), DNNL_MEMORY_NONE);
  }
};

/// A model has a dozen kinds, and as many for each size of a micro-batch.
constexpr std::size_t kMostProducts = 1024;

Product& product_of(const Kind& kind) {
  static thread_local std::map<Kind, Product> products;
  const auto found = products.find(kind);
  if (found != products.end()) return found->second;
  if (products.size() >= kMostProducts) products.clear();
  return products.try_emplace(kind, kind).first->second;
}

}  // namespace

bool has_bf16_instructions() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (isa & wanted) == wanted;
}

void use_threads(int threads) {
  // Of whichever OpenMP runtime oneDNN brings; it may have been built without.
  using SetThreads = void (*)(int);
  const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(threads);
}

void gemm_bf16(Transpose op_a, Transpose op_b, const ProductShape& shape, const Bf16* a,
               const Bf16* b, float beta, float* c) {
  DELTAPIPE_ASSERT(beta == 0 || beta == 1, std::to_string(beta));
  static thread_local dnnl::stream stream(engine());
  Product& product = product_of({op_a, op_b, shape, beta == 1});
  product.a.set_data_handle(const_cast<Bf16*>(a));
  product.b.set_data_handle(const_cast<Bf16*>(b));
  product.c.set_data_handle(c);
  product.matmul.execute(
      stream,
      {{DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.c}});
  stream.wait();
}

}  // namespace deltapipe::onednn

#else

namespace deltapipe::onednn {

bool has_bf16_instructions() {
  return false;
}

void use_threads(int) {}

void gemm_bf16(Transpose, Transpose, const ProductShape&, const Bf16*, const Bf16*, float, float*) {
  DELTAPIPE_ASSERT(false, "built without oneDNN");
}

}  // namespace deltapipe::onednn

#endif
