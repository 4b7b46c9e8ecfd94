// SPDX-License-Identifier: BSD-3-Clause
// Documents to token ids on several threads, in their order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/data/corpus.hpp"
#include "core/text/tokenizer.hpp"

namespace deltapipe {

/// Takes documents as text in pieces of any size and gives their ids to a sink: the same ones for
/// any number of threads. Texts are cut where ids can no longer change, into parts of about a
/// mebibyte that threads encode; two for each thread are kept at a time.
class ParallelTokenizer {
 public:
  /// `threads`, at least 1, with the calling one, which alone calls the sink; fewer where the
  /// system has no more.
  ParallelTokenizer(const Tokenizer& tokenizer, TokenSink& sink, int threads);
  /// Without finish() what is on its way is given up.
  ~ParallelTokenizer();
  ParallelTokenizer(const ParallelTokenizer&) = delete;
  ParallelTokenizer& operator=(const ParallelTokenizer&) = delete;

  void add(std::string_view text);
  void end_document();
  /// Waits until the sink has all.
  void finish();

 private:
  /// Documents' texts one after the other; the last one may go on in the next part.
  struct Part {
    std::string text;
    std::vector<std::size_t> ends;  ///< of documents in the text
    std::vector<std::int32_t> ids;
    std::vector<std::size_t> id_ends;  ///< of documents in the ids
    std::exception_ptr error;
    bool is_done = false;
  };

  void cut_open_document();
  void submit();
  /// Passes the oldest part on; encodes parts that nobody has begun while it is not done.
  void give_oldest_to_sink();
  void encode(Part& part) const noexcept;
  std::shared_ptr<Part> take_waiting();  ///< of the locked list; null: none
  void work();

  const Tokenizer& tokenizer_;
  TokenSink& sink_;
  std::size_t most_parts_;
  Part open_;
  std::size_t next_look_;  ///< for a cut, at this length of the open part

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Part>> parts_;    ///< in order, until the sink has them
  std::deque<std::shared_ptr<Part>> waiting_;  ///< of these, those that nobody has begun
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deltapipe
