// SPDX-License-Identifier: BSD-3-Clause
// Keys of [output] and [checkpoint].
#include "app/deck/keys/section_keys.hpp"

namespace deltapipe::deck {

void add_output(std::vector<Key>& keys, OutputSettings& o) {
  SectionKeys add(keys, "output");
  add("directory", Text{&o.directory, false},
      "Directory of run.h5, the model and cache files. It is created if it is missing.");
  add("save_model", Flag{&o.save_model},
      "Writes the trained model to model/ as a Hugging Face directory.");
  add("model_precision",
      choice(o.model_precision,
             {{"fp32", Precision::fp32}, {"fp16", Precision::fp16}, {"bf16", Precision::bf16}}),
      "Precision of the written weights.");
  add("overwrite", Flag{&o.overwrite},
      "Starts from scratch and replaces a run or a model in the directory. An unfinished run that "
      "was itself started this way is resumed.");
  add("log_every", Integer{&o.log_every, 1, kAnyCount}, "Steps between lines of a batch log.");
  add("trace_step", Integer{&o.trace_step, 0, kAnyCount},
      "Step whose time line is written to trace.json in the Chrome trace format. 0 writes none.");
}

void add_checkpoint(std::vector<Key>& keys, CheckpointSettings& c) {
  constexpr double kLongest = 365.0 * 86400;
  SectionKeys add(keys, "checkpoint");
  add("every_steps", Integer{&c.every_steps, 0, kAnyCount},
      "Steps between checkpoints. 0 writes none by steps.");
  add("every", Quantity{&c.every_seconds, kLongDurationUnits, kLongest},
      "Time between checkpoints. 0 writes none by time.");
  add("keep", Integer{&c.keep, 1, 1000},
      "Number of newest checkpoints that are retained. When the run is finished, all but "
      "milestones are deleted.");
  add("milestone_every", Integer{&c.milestone_every, 0, kAnyCount},
      "Steps between milestones, checkpoints that are retained after the run. 0 writes none.");
  add("directory", Text{&c.directory},
      "Directory for checkpoints. If it is empty, they go to checkpoints/ in the output "
      "directory.");
  add("mode",
      choice(c.mode, {{"exact", CheckpointMode::exact}, {"resync", CheckpointMode::resync}}),
      "exact stores the boundaries' memories of samples, and a restart gives the same bits. resync "
      "leaves them out: after a restart each sample's next visit is a first one.");
  add("change_optimizer", Flag{&c.change_optimizer},
      "Allows a restart to change [training.optimizer], except name, frozen and "
      "relative_embeddings, and "
      "the length of the run. The new values apply from the checkpoint's step.");
  add("time_limit", Quantity{&c.time_limit_seconds, kLongDurationUnits, kLongest},
      "Time from the start of the run within which it stops and has written a checkpoint. 0 sets "
      "no "
      "limit.");
}

}  // namespace deltapipe::deck
