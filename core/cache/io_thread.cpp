// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/io_thread.hpp"

#include <algorithm>

#include "core/base/parallel/helper_thread.hpp"

namespace deltapipe {

CacheIoThread::CacheIoThread()
    : thread_(start_helper_thread("reading and writing caches", [this] { run(); })) {}

CacheIoThread::~CacheIoThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void CacheIoThread::submit(std::deque<IoTask*>& queue, IoTask& task) {
  task.done_.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    queue.push_back(&task);
  }
  work_.notify_one();
}

void CacheIoThread::submit_read(IoTask& task) {
  submit(reads_, task);
}
void CacheIoThread::submit_write(IoTask& task) {
  submit(writes_, task);
}

void CacheIoThread::wait_read(IoTask& task) {
  std::unique_lock lock(mutex_);
  const auto place = std::find(reads_.begin(), reads_.end(), &task);
  if (place != reads_.end()) {
    reads_.erase(place);
    reads_.push_front(&task);
  }
  finished_.wait(lock, [&] { return task.is_done(); });
}

void CacheIoThread::wait_write(const IoTask& task) {
  std::unique_lock lock(mutex_);
  ++waiting_for_writes_;
  finished_.wait(lock, [&] { return task.is_done(); });
  --waiting_for_writes_;
}

IoTask* CacheIoThread::next_task() {
  const bool write = !writes_.empty() && (reads_.empty() || waiting_for_writes_ > 0);
  std::deque<IoTask*>& queue = write ? writes_ : reads_;
  if (queue.empty()) return nullptr;
  IoTask* task = queue.front();
  queue.pop_front();
  return task;
}

void CacheIoThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    IoTask* task = next_task();
    if (task == nullptr) {
      if (stopping_) return;
      work_.wait(lock);
      continue;
    }
    lock.unlock();
    task->execute();
    lock.lock();
    task->done_.store(true, std::memory_order_release);
    finished_.notify_all();
  }
}

}  // namespace deltapipe
