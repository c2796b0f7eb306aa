/* What Python calls of this library, and the handlers that it gives to XLA. */
#ifndef FARANDOLE_JAX_H
#define FARANDOLE_JAX_H

#include <stdint.h>

#include "capi/farandole.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of farandole's C interface that this library was made for. */
FARANDOLE_API uint32_t farandole_jax_abi_version(void);
/* The handlers of a collective, as XLA calls them with a frame; they return an error of XLA's, or NULL. */
FARANDOLE_API void* farandole_jax_instantiate(void* frame);
FARANDOLE_API void* farandole_jax_execute(void* frame);
/* The same, of the platform CUDA. */
FARANDOLE_API void* farandole_jax_execute_on_device(void* frame);
/* The process has entered a world: collectives are carried out by this engine from now on. */
FARANDOLE_API void farandole_jax_attach(farandole_engine* engine, int32_t rank, int32_t local_rank, int32_t local_size);
/* The world is about to end: from the return on, collectives that begin fail. Those in flight are the engine's to
 * complete. */
FARANDOLE_API void farandole_jax_detach(void);

#ifdef __cplusplus
}
#endif
#endif /* FARANDOLE_JAX_H */
