// SPDX-License-Identifier: BSD-3-Clause
// Thread that reads and writes spill files, one for all caches of a rank. Reads precede writes,
// since training waits for them sooner. Tasks of one kind run in the order of submission.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>

namespace deltapipe {

/// One read or write. The submitter owns it, and must not access it or its buffer from submit()
/// until is_done() returns true.
class IoTask {
 public:
  virtual ~IoTask() = default;
  virtual void execute() noexcept = 0;
  bool is_done() const { return done_.load(std::memory_order_acquire); }

 private:
  friend class CacheIoThread;
  std::atomic<bool> done_{true};
};

class CacheIoThread {
 public:
  /// Throws UserError when the system cannot start a thread.
  CacheIoThread();
  /// Runs all queued tasks, then ends.
  ~CacheIoThread();
  CacheIoThread(const CacheIoThread&) = delete;
  CacheIoThread& operator=(const CacheIoThread&) = delete;

  void submit_read(IoTask& task);
  void submit_write(IoTask& task);
  /// Blocks until the task is done; it overtakes the other reads.
  void wait_read(IoTask& task);
  /// Blocks until the task is done; meanwhile writes, in their order, precede reads.
  void wait_write(const IoTask& task);

 private:
  void submit(std::deque<IoTask*>& queue, IoTask& task);
  IoTask* next_task();  ///< requires the lock; null: the queues are empty
  void run();

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable finished_;
  std::deque<IoTask*> reads_;
  std::deque<IoTask*> writes_;
  int waiting_for_writes_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace deltapipe
