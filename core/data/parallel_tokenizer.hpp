// SPDX-License-Identifier: BSD-3-Clause
// Converts documents to token ids on several threads, in order.
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

/// Accepts documents as text in pieces of any size and passes their ids to a sink. The ids do not
/// depend on the number of threads. Texts are cut where ids can no longer change, into parts of
/// about a mebibyte, which threads encode. At most two parts per thread are stored at a time.
class ParallelTokenizer {
 public:
  /// `threads`, at least 1, includes the calling thread, which alone calls the sink. There are
  /// fewer if the system cannot start more.
  ParallelTokenizer(const Tokenizer& tokenizer, TokenSink& sink, int threads);
  /// Discards unfinished parts if finish() was not called.
  ~ParallelTokenizer();
  ParallelTokenizer(const ParallelTokenizer&) = delete;
  ParallelTokenizer& operator=(const ParallelTokenizer&) = delete;

  void add(std::string_view text);
  void end_document();
  /// Waits until the sink has received all ids.
  void finish();

 private:
  /// Texts of documents one after another; the last one may continue in the next part.
  struct Part {
    std::string text;
    std::vector<std::size_t> ends;  ///< ends of documents in the text
    std::vector<std::int32_t> ids;
    std::vector<std::size_t> id_ends;  ///< ends of documents in the ids
    std::exception_ptr error;
    bool is_done = false;
  };

  void cut_open_document();
  void submit();
  /// Passes the oldest part to the sink; until it is done, encodes parts that no thread has begun.
  void give_oldest_to_sink();
  void encode(Part& part) const noexcept;
  std::shared_ptr<Part> take_waiting();  ///< takes a part from the locked list; null: none
  void work();

  const Tokenizer& tokenizer_;
  TokenSink& sink_;
  std::size_t most_parts_;
  Part open_;
  std::size_t next_look_;  ///< length of the open part at which to search for a cut

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Part>> parts_;    ///< parts in order, until the sink has them
  std::deque<std::shared_ptr<Part>> waiting_;  ///< those of parts_ that no thread has begun
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deltapipe
