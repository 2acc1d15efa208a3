// Batch scripts of SLURM.
#pragma once

#include <string>

#include "engine/jobs/job_file.h"

namespace engine::jobs {

// A script for sbatch(1): a task on each node, which starts the ranks there. It saves before the time limit, and puts itself into the
// queue again where that or a failure that another try may cure has ended it. Tried with Slurm 22.05.8.
std::string SlurmScript(const recipe::Recipe& recipe, const Job& job);

// A word of the shell that stands for these bytes.
std::string ShellWord(const std::string& text);

}  // namespace engine::jobs
