// Ops that ask about the world when they run: size, rank, local size, local rank, and whether this rank is in a set.
#pragma once

namespace farandole::tensorflow {

// Tells TensorFlow of them and their kernels.
void register_questions();

}  // namespace farandole::tensorflow
