// SPDX-License-Identifier: BSD-3-Clause
// A separate library around oneDNN, which onednn_library.cpp loads when a run needs it. It
// is separate because oneDNN's OpenMP runtime binds the threads of every program that is linked
// with it, according to OMP_PROC_BIND, before main() begins.
#include "core/kernels/gemm/onednn_module.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace {

const dnnl::engine& engine() {
  static const dnnl::engine cpu = [] {
    // If several threads create the same product at the same time, oneDNN 2.6's cache gives some of
    // them another implementation, which adds in another order.
    dnnl::set_primitive_cache_capacity(0);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return cpu;
}

/// Describes a matrix whose rows or, if transposed, columns are `apart` elements apart in memory.
dnnl::memory::desc description(int rows, int columns, int apart, dnnl::memory::data_type type,
                               bool turned) {
  const dnnl::memory::dims strides =
      turned ? dnnl::memory::dims{1, apart} : dnnl::memory::dims{apart, 1};
  return {{rows, columns}, type, strides};
}

/// Returns true if oneDNN's choice must not be used: with AMX, "brg" of oneDNN 2.6 gives wrong sums
/// or ends in SIGILL for K = 63. An odd K fills only half of a pair; no errors were seen for even
/// K.
bool is_broken(const DeltapipeOnednnProduct& kind, const char* chosen) {
  constexpr std::string_view kAmx = "brg:avx512_core_amx";
  return std::string_view(chosen).starts_with(kAmx) && kind.K % 2 != 0;
}

/// Returns true if oneDNN's second choice is faster; `first` is its first one. oneDNN 2 has two
/// implementations with AVX-512 BF16. Its first choice is "brg". The next one, "gemm:jit", needs
/// 0.7 to 0.95 times as long if it adds to c or a is transposed, 1.07 times as long if only b is
/// transposed, and otherwise as long.
bool is_faster_by_gemm(const DeltapipeOnednnProduct& kind, const char* first) {
  const bool turns_b_alone = kind.turns_b && !kind.turns_a && !kind.accumulates;
  return std::strcmp(first, "brg:avx512_core_bf16") == 0 && !turns_b_alone;
}

/// Code for one kind of product, with memory objects for its operands.
struct Product {
  dnnl::matmul matmul;
  dnnl::memory a, b, c;

  explicit Product(const DeltapipeOnednnProduct& kind) {
    using Type = dnnl::memory::data_type;
    const auto desc_a = description(kind.M, kind.K, kind.row_a, Type::bf16, kind.turns_a);
    const auto desc_b = description(kind.K, kind.N, kind.row_b, Type::bf16, kind.turns_b);
    const auto desc_c = description(kind.M, kind.N, kind.row_c, Type::f32, false);
    dnnl::primitive_attr attributes;
    if (kind.accumulates) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    dnnl::matmul::primitive_desc made(engine(), desc_a, desc_b, desc_c, attributes);
#else
    const dnnl::matmul::desc operation(desc_a, desc_b, desc_c);  // next_impl() refers to it
    dnnl::matmul::primitive_desc made(operation, attributes, engine());
#endif
    while (is_broken(kind, made.impl_info_str()) && made.next_impl()) {
    }
    matmul = dnnl::matmul(made);
    if (is_faster_by_gemm(kind, made.impl_info_str()) && made.next_impl() &&
        std::strcmp(made.impl_info_str(), "gemm:jit") == 0)
      matmul = dnnl::matmul(made);
    a = dnnl::memory(desc_a, engine(), DNNL_MEMORY_NONE);
    b = dnnl::memory(desc_b, engine(), DNNL_MEMORY_NONE);
    c = dnnl::memory(desc_c, engine(), DNNL_MEMORY_NONE);
  }
};

/// A model has a dozen kinds, and about five for each block of queries, for each size of a
/// micro-batch: two, or up to 32 for texts with labels.
constexpr std::size_t kMostProducts = 8192;

Product& product_of(const DeltapipeOnednnProduct& kind) {
  static thread_local std::map<DeltapipeOnednnProduct, Product> products;
  const auto found = products.find(kind);
  if (found != products.end()) return found->second;
  if (products.size() >= kMostProducts) products.clear();
  return products.try_emplace(kind, kind).first->second;
}

void multiply(const DeltapipeOnednnProduct& kind, const std::uint16_t* a, const std::uint16_t* b,
              float* c) {
  static thread_local dnnl::stream stream(engine());
  Product& product = product_of(kind);
  product.a.set_data_handle(const_cast<std::uint16_t*>(a));
  product.b.set_data_handle(const_cast<std::uint16_t*>(b));
  product.c.set_data_handle(c);
  product.matmul.execute(
      stream,
      {{DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.c}});
  stream.wait();
}

/// Chooses another implementation than AMX's, which no test has run for convolutions yet. For
/// products of matrices some are wrong: see is_broken().
template <class Description>
void avoid_amx(Description& made) {
  while (std::strstr(made.impl_info_str(), "amx") != nullptr && made.next_impl()) {
  }
}

/// Code for one kind of convolution. oneDNN chooses the layout of the weights, and they are
/// converted from and to that of the caller.
class Convolution {
 public:
  explicit Convolution(const DeltapipeOnednnConvolution& kind) : pass_(kind.pass) {
    using Tag = dnnl::memory::format_tag;
    using Type = dnnl::memory::data_type;
    const Type operand = kind.in_bf16 ? Type::bf16 : Type::f32;
    constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
    const auto side = [&](int pixels) {
      return (pixels + 2 * kind.padding - kind.kernel) / kind.stride + 1;
    };
    const auto described = [&](int pass) {
      const auto type = [&](int written_by) { return pass == written_by ? Type::f32 : operand; };
      return Operands{
          {{kind.images, kind.channels, kind.height, kind.width}, type(1), Tag::nhwc},
          {{kind.outputs, kind.channels, kind.kernel, kind.kernel}, type(2), Tag::any},
          {{kind.images, kind.outputs, side(kind.height), side(kind.width)}, type(0), Tag::nhwc}};
    };
    const dnnl::memory::desc user({kind.outputs, kind.channels, kind.kernel, kind.kernel},
                                  Type::f32, Tag::oihw);
    const Operands of_pass = described(pass_), of_forward = described(0);
    const dnnl::memory::desc &x = of_pass.x, &w = of_pass.weights, &y = of_pass.y;
    user_weights_ = dnnl::memory(user, engine(), DNNL_MEMORY_NONE);
    const dnnl::memory::dims strides = {kind.stride, kind.stride};
    const dnnl::memory::dims padding = {kind.padding, kind.padding};
    using Forward = dnnl::convolution_forward;
    using Data = dnnl::convolution_backward_data;
    using Weights = dnnl::convolution_backward_weights;
    constexpr auto kKind = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
    Forward::primitive_desc forward(engine(), kKind, kAlgorithm, of_forward.x, of_forward.weights,
                                    of_forward.y, strides, padding, padding);
    const auto make = [&]<class Pass>(Pass) {
      typename Pass::primitive_desc made(engine(), kAlgorithm, x, w, y, strides, padding, padding,
                                         forward);
      avoid_amx(made);
      return made;
    };
#else
    const Forward::desc forward_operation(kKind, kAlgorithm, of_forward.x, of_forward.weights,
                                          of_forward.y, strides, padding, padding);
    Forward::primitive_desc forward(forward_operation, engine());
    const auto make = [&]<class Pass>(Pass) {
      const typename Pass::desc operation(kAlgorithm, x, w, y, strides, padding, padding);
      typename Pass::primitive_desc made(operation, engine(), forward);
      avoid_amx(made);
      return made;
    };
#endif
    avoid_amx(forward);
    x_ = dnnl::memory(x, engine(), DNNL_MEMORY_NONE);
    y_ = dnnl::memory(y, engine(), DNNL_MEMORY_NONE);
    dnnl::memory::desc chosen;
    if (pass_ == 0) {
      chosen = forward.weights_desc();
      primitive_ = Forward(forward);
    } else if (pass_ == 1) {
      const auto made = make(Data());
      chosen = made.weights_desc();
      primitive_ = Data(made);
    } else {
      const auto made = make(Weights());
      chosen = made.diff_weights_desc();
      primitive_ = Weights(made);
    }
    if (chosen == user) {
      weights_ = user_weights_;
      return;
    }
    weights_ = dnnl::memory(chosen, engine(), DNNL_MEMORY_NONE);
    converted_bytes_ = chosen.get_size();
    reorder_ = pass_ == 2 ? dnnl::reorder(weights_, user_weights_)
                          : dnnl::reorder(user_weights_, weights_);
  }

  void execute(dnnl::stream& stream, void* x, float* weights, void* y) {
    x_.set_data_handle(x);
    y_.set_data_handle(y);
    user_weights_.set_data_handle(weights);
    if (converted_bytes_ > 0) weights_.set_data_handle(scratch(converted_bytes_));
    if (pass_ == 0) {
      convert(stream);
      primitive_.execute(stream,
                         {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, y_}});
    } else if (pass_ == 1) {
      convert(stream);
      primitive_.execute(
          stream, {{DNNL_ARG_DIFF_SRC, x_}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DIFF_DST, y_}});
    } else {
      primitive_.execute(
          stream, {{DNNL_ARG_SRC, x_}, {DNNL_ARG_DIFF_WEIGHTS, weights_}, {DNNL_ARG_DIFF_DST, y_}});
      convert(stream);
    }
    stream.wait();
  }

 private:
  /// Converts the weights before the pass, or their gradient after it.
  void convert(dnnl::stream& stream) {
    if (!reorder_) return;
    if (pass_ == 2)
      reorder_.execute(stream, weights_, user_weights_);
    else
      reorder_.execute(stream, user_weights_, weights_);
  }

  /// Returns the thread's memory for the converted weights of one call.
  static void* scratch(std::size_t bytes) {
    constexpr std::size_t kLine = 64;
    static thread_local std::vector<std::byte> memory;
    if (memory.size() < bytes + kLine) memory.resize(bytes + kLine);
    void* place = memory.data();
    std::size_t space = memory.size();
    return std::align(kLine, bytes, place, space);
  }

  struct Operands {
    dnnl::memory::desc x, weights, y;
  };

  int pass_;
  std::size_t converted_bytes_ = 0;  ///< 0: oneDNN computes with the caller's layout
  dnnl::memory user_weights_, weights_, x_, y_;
  dnnl::primitive primitive_;
  dnnl::reorder reorder_;
};

/// A residual network has about ten kinds, with three passes, for each size of a micro-batch.
constexpr std::size_t kMostConvolutions = 1024;

void convolve(const DeltapipeOnednnConvolution& kind, void* x, float* weights, void* y) {
  static thread_local dnnl::stream stream(engine());
  static thread_local std::map<DeltapipeOnednnConvolution, Convolution> convolutions;
  if (convolutions.size() >= kMostConvolutions && !convolutions.contains(kind))
    convolutions.clear();
  convolutions.try_emplace(kind, kind).first->second.execute(stream, x, weights, y);
}

/// Returns null, or the text of the error that `body` throws.
template <class Body>
const char* error_of(const Body& body) {
  static thread_local std::string problem;
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}

}  // namespace

const char* deltapipe_onednn_version() {
  static const std::string text = [] {
    const dnnl_version_t& version = *dnnl::version();
    return std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
           std::to_string(version.patch);
  }();
  return text.c_str();
}

int deltapipe_onednn_has_bf16() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (isa & wanted) == wanted ? 1 : 0;
}

const char* deltapipe_onednn_multiply(const DeltapipeOnednnProduct* product, const std::uint16_t* a,
                                      const std::uint16_t* b, float* c) {
  return error_of([&] { multiply(*product, a, b, c); });
}

const char* deltapipe_onednn_convolve(const DeltapipeOnednnConvolution* convolution, void* x,
                                      float* weights, void* y) {
  return error_of([&] { convolve(*convolution, x, weights, y); });
}
