#pragma once

// The statements that tools/mutate.py has numbered in its copies of the kernels, one of which a run does without.
namespace tandem::model {

// Whether the statement is carried out. Notes that it has been come to.
bool kept(int place);

// From now on all are kept but this one; -1: all are. Nothing has been come to.
void leave_out(int place);
bool come_to(int place);

}  // namespace tandem::model
