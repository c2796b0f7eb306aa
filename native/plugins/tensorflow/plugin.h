/* What Python calls of this library, beside tf.load_op_library. */
#ifndef FARANDOLE_TENSORFLOW_H
#define FARANDOLE_TENSORFLOW_H

#include <stdint.h>

#include "capi/farandole.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of farandole's C interface that this library was made for. */
FARANDOLE_API uint32_t farandole_tensorflow_abi_version(void);
/* Why TensorFlow does not know the ops, or "". */
FARANDOLE_API const char* farandole_tensorflow_error(void);
/* The process has entered a world: ops are carried out by this engine from now on. */
FARANDOLE_API void farandole_tensorflow_attach(farandole_engine* engine, int32_t rank, int32_t local_rank,
                                               int32_t local_size);
/* The world is about to end: from the return on, ops that begin fail. Those in flight are the engine's to complete. */
FARANDOLE_API void farandole_tensorflow_detach(void);
/* Calls without names count from 0 again everywhere, and their names have this number in them: all ranks have joined
   so many times in this world. */
FARANDOLE_API void farandole_tensorflow_restart_names(uint32_t restarts);
/* Calls without names in a process set count from 0 again: its id may have belonged to other ranks before. */
FARANDOLE_API void farandole_tensorflow_restart_names_of(uint32_t group);

#ifdef __cplusplus
}
#endif
#endif /* FARANDOLE_TENSORFLOW_H */
