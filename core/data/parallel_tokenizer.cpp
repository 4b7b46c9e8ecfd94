// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/parallel_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/parallel/helper_thread.hpp"

namespace deltapipe {

namespace {

constexpr std::size_t kPartBytes = std::size_t{1} << 20;

}  // namespace

ParallelTokenizer::ParallelTokenizer(const Tokenizer& tokenizer, TokenSink& sink, int threads)
    : tokenizer_(tokenizer),
      sink_(sink),
      most_parts_(threads > 1 ? 2 * static_cast<std::size_t>(threads) : 1),
      next_look_(kPartBytes) {
  DELTAPIPE_ASSERT(threads > 0, fmt::format("{} threads", threads));
  try {
    for (int i = 1; i < threads; ++i)
      threads_.push_back(start_helper_thread("tokenising", [this] { work(); }));
  } catch (const UserError&) {
    // The system cannot start more threads; fewer suffice.
  }
}

ParallelTokenizer::~ParallelTokenizer() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ParallelTokenizer::add(std::string_view text) {
  open_.text += text;
  if (open_.text.size() >= next_look_) cut_open_document();
}

void ParallelTokenizer::end_document() {
  open_.ends.push_back(open_.text.size());
  if (open_.text.size() >= kPartBytes) submit();
}

/// A search for a cut costs the length of the document, so the next one waits until it has doubled.
void ParallelTokenizer::cut_open_document() {
  const std::size_t begin = open_.ends.empty() ? 0 : open_.ends.back();
  const std::size_t cut = begin + tokenizer_.safe_cut(std::string_view(open_.text).substr(begin));
  std::string rest = open_.text.substr(cut);
  open_.text.resize(cut);
  if (cut > 0) submit();
  open_.text = std::move(rest);
  next_look_ = std::max(kPartBytes, 2 * open_.text.size());
}

void ParallelTokenizer::submit() {
  auto part = std::make_shared<Part>(std::exchange(open_, {}));
  next_look_ = kPartBytes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    parts_.push_back(part);
    waiting_.push_back(std::move(part));
  }
  changed_.notify_one();
  while (parts_.size() >= most_parts_) give_oldest_to_sink();
}

void ParallelTokenizer::finish() {
  submit();
  while (!parts_.empty()) give_oldest_to_sink();
}

std::shared_ptr<ParallelTokenizer::Part> ParallelTokenizer::take_waiting() {
  if (waiting_.empty()) return nullptr;
  std::shared_ptr<Part> part = std::move(waiting_.front());
  waiting_.pop_front();
  return part;
}

void ParallelTokenizer::give_oldest_to_sink() {
  const std::shared_ptr<Part> oldest = parts_.front();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!oldest->is_done) {
    if (const std::shared_ptr<Part> part = take_waiting()) {
      lock.unlock();
      encode(*part);
      lock.lock();
      part->is_done = true;
    } else {
      changed_.wait(lock);
    }
  }
  parts_.pop_front();
  lock.unlock();
  if (oldest->error) std::rethrow_exception(oldest->error);
  const std::span<const std::int32_t> ids(oldest->ids);
  std::size_t begin = 0;
  for (const std::size_t end : oldest->id_ends) {
    if (end > begin) sink_.append(ids.subspan(begin, end - begin));
    sink_.end_document();
    begin = end;
  }
  if (begin < ids.size()) sink_.append(ids.subspan(begin));
}

void ParallelTokenizer::encode(Part& part) const noexcept {
  try {
    const std::string_view text = part.text;
    std::size_t begin = 0;
    for (const std::size_t end : part.ends) {
      tokenizer_.encode_to(text.substr(begin, end - begin), part.ids);
      part.id_ends.push_back(part.ids.size());
      begin = end;
    }
    tokenizer_.encode_to(text.substr(begin), part.ids);
    std::string().swap(part.text);
  } catch (...) {
    part.error = std::current_exception();
  }
}

void ParallelTokenizer::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<Part> part = take_waiting();
    lock.unlock();
    encode(*part);
    lock.lock();
    part->is_done = true;
    changed_.notify_all();
  }
}

}  // namespace deltapipe
