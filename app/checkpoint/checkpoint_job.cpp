// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/checkpoint_job.hpp"

#include <exception>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/base/pieces.hpp"
#include "core/files/replacement.hpp"
#include "core/files/state_file.hpp"

namespace deltapipe {

namespace {

/// As write_state(), until it is given up.
void write_pieces(const StateContent& content, StateWriter& writer,
                  const std::atomic<bool>& given_up) {
  constexpr std::size_t kPiece = std::size_t{1} << 23;
  for (const StateContent::Part& part : content.parts) {
    writer.begin_part(part.name);
    for (const StateContent::Item& item : part.items) {
      writer.begin_item(item.item);
      for_pieces(0, item.bytes.size(), kPiece, [&](std::size_t first, std::size_t count) {
        if (given_up.load()) throw UserError({.what = "the run has ended"});
        writer.append(item.bytes.data() + first, count);
      });
    }
    writer.end_part();
  }
}

}  // namespace

CheckpointJob::CheckpointJob(std::function<void(CheckpointJob&)> work)
    : begin_(Clock::now()),
      thread_(start_helper_thread("checkpoints", [this, work = std::move(work)] {
        try {
          work(*this);
        } catch (const std::bad_alloc&) {
          error = "out of memory";  // short enough to need none
        } catch (const std::exception& failure) {
          error = failure.what();
          if (error.empty()) error = "unknown reason";
        }
        seconds = seconds_between(begin_, Clock::now());
        done_.store(true, std::memory_order_release);
      })) {}

CheckpointJob::~CheckpointJob() {
  give_up();
  thread_.join();
}

void make_unfinished(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directory(path, error);
  if (error && !std::filesystem::is_directory(path)) make_directory(path);
}

void write_rank(const std::string& path, const StateContent& content,
                const std::atomic<bool>& given_up) {
  StateFileWriter writer(path);
  write_pieces(content, writer, given_up);
  writer.close();
}

CheckpointFile write_run_file(const std::string& directory, const RunFileSnapshot& history) {
  history.write(directory + "/" + kRunFileCopy);
  return secure_file(directory, kRunFileCopy);
}

}  // namespace deltapipe
