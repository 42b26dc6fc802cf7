/* The C interface over all steps: one header, one shared library, emulator builds included.
 *
 *   FlashForward call = {q, k, v, o, lse, FLASH_FP16, FLASH_MASK_NONE, 0, flash_steps_default_scale(64)};
 *   if (flash_steps_forward(9, &call, NULL) != FLASH_OK) puts(flash_steps_last_error());
 *
 * A child of fork() must call exec() before it uses the library once a CPU step has run, for the threads of
 * OpenMP do not exist in it and it would wait for them for ever (in Python: multiprocessing's "spawn").
 *
 * Functions that return int give FLASH_OK or one of the codes below. A refused call writes nothing. Every
 * function may be called from several threads at once. */
#ifndef FLASH_STEPS_H
#define FLASH_STEPS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FLASH_STEPS_API __attribute__((visibility("default")))
#else
#define FLASH_STEPS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FLASH_OK = 0,
    FLASH_BAD_ARGUMENT = 1, /* the call breaks the contract */
    FLASH_UNSUPPORTED = 2,  /* no such step, or it does not take this dtype */
    FLASH_DEVICE_ERROR = 3  /* out of memory, no usable GPU, or a failed kernel */
};

enum { FLASH_FP32 = 0, FLASH_FP16 = 1, FLASH_BF16 = 2 };

/* Key j is visible to query i when j <= i + diagonal. */
enum {
    FLASH_MASK_NONE = 0,
    FLASH_MASK_CAUSAL = 1,              /* diagonal 0; refused when Nq != Nk, where it would be ambiguous */
    FLASH_MASK_CAUSAL_TOP_LEFT = 2,     /* diagonal 0: the first query sees the first key only */
    FLASH_MASK_CAUSAL_BOTTOM_RIGHT = 3, /* diagonal Nk - Nq: the last query sees every key */
    FLASH_MASK_CAUSAL_DIAGONAL = 4      /* the diagonal given in the call */
};

/* Sizes and strides in the logical order (batch, head, row, element), strides in elements, whatever the order
 * in memory. The last stride must be 1. */
typedef struct FlashTensor {
    void* data;
    int64_t shape[4];
    int64_t stride[4];
} FlashTensor;

typedef struct FlashForward {
    FlashTensor q; /* (B, Hq, Nq, D) */
    FlashTensor k; /* (B, Hkv, Nk, D), Hkv divides Hq */
    FlashTensor v; /* like k */
    FlashTensor o; /* like q, written */
    float* lse;    /* (B, Hq, Nq) contiguous, written: natural logarithm of the sum of exp(scaled scores) */
    int dtype;     /* of q, k, v and o */
    int mask;      /* FLASH_MASK_... */
    int64_t diagonal; /* read for FLASH_MASK_CAUSAL_DIAGONAL only */
    float scale;      /* finite and > 0; there is no default */
} FlashForward;

/* Runs one step's forward. `step` is the number in its directory's name. CPU steps take host pointers, the
 * others device pointers; flash_steps_info says which. `stream` is a cudaStream_t, NULL for the default
 * stream; the CPU steps and the emulator ignore it. On a GPU the call returns before the kernel has finished.
 */
FLASH_STEPS_API int flash_steps_forward(int step, const FlashForward* call, void* stream);

/* The gradients of one forward. */
typedef struct FlashBackward {
    size_t size;   /* sizeof(FlashBackward): lets a later library tell an older caller's struct */
    FlashTensor q; /* q, k, v, o, lse, mask, diagonal and scale are those of the forward */
    FlashTensor k;
    FlashTensor v;
    FlashTensor o;
    const float* lse;        /* (B, Hq, Nq) contiguous */
    FlashTensor d_o;         /* like q: the gradient of the loss with respect to o */
    FlashTensor dq;          /* like q, written */
    FlashTensor dk;          /* like k, written: summed over the query heads of a group */
    FlashTensor dv;          /* like k, written */
    void* workspace;         /* 16-byte aligned memory of the kind that the step takes, which it overwrites */
    int64_t workspace_bytes; /* at least flash_steps_backward_workspace_bytes */
    int dtype;               /* of all tensors */
    int mask;                /* FLASH_MASK_... */
    int64_t diagonal;        /* read for FLASH_MASK_CAUSAL_DIAGONAL only */
    float scale;             /* finite and > 0; there is no default */
    int deterministic;       /* 1: bitwise equal from run to run; 0: faster, dq differs by roundings */
} FlashBackward;

/* Runs one step's backward, by the rules of flash_steps_forward. */
FLASH_STEPS_API int flash_steps_backward(int step, const FlashBackward* call, void* stream);

/* Bytes of workspace that a call needs: read are size, the shapes of q and k, and deterministic. Linear in
 * B Hq Nq D, whatever Nk is. -1 when the step or the shape is refused; the last error then says why. */
FLASH_STEPS_API int64_t flash_steps_backward_workspace_bytes(int step, const FlashBackward* call);

/* What went wrong in this thread's last call, one sentence; empty after a success. Valid until its next call.
 */
FLASH_STEPS_API const char* flash_steps_last_error(void);

/* 1 / sqrt(head_dim): use the true head dimension, not a padded one. 0 gives infinity and a negative one NaN;
 * flash_steps_forward refuses both. */
FLASH_STEPS_API float flash_steps_default_scale(int64_t head_dim);

typedef struct FlashStepInfo {
    int step;
    const char* name;     /* "03_tiled_attention" */
    int on_device;        /* 1: device pointers, 0: host pointers */
    int accepts_dtype[3]; /* indexed by FLASH_FP32, FLASH_FP16, FLASH_BF16 */
    int has_backward;     /* 1: flash_steps_backward takes it, for the same dtypes */
} FlashStepInfo;

/* The steps that have a forward, in ladder order: index 0 to flash_steps_count() - 1. */
FLASH_STEPS_API int flash_steps_count(void);
FLASH_STEPS_API int flash_steps_info(int index, FlashStepInfo* info);

/* "cuda" or "emulator". */
FLASH_STEPS_API const char* flash_steps_backend(void);

/* Device memory in either back end, for callers without a CUDA library of their own. The sizes are in bytes.
 * Alloc gives NULL when it fails. The copies wait for the default stream. Freeing NULL does nothing.
 * The emulator's device memory is half of the host's. It takes host memory when it is used, twice its size:
 * each byte has a byte that says what is known about it. Copies must lie in one allocation; what does not,
 * and freeing anything but the start of an allocation, is a FLASH_DEVICE_ERROR. */
FLASH_STEPS_API void* flash_steps_device_alloc(size_t bytes);
FLASH_STEPS_API int flash_steps_device_free(void* device);
FLASH_STEPS_API int flash_steps_copy_to_device(void* device, const void* host, size_t bytes);
FLASH_STEPS_API int flash_steps_copy_to_host(void* host, const void* device, size_t bytes);

/* Waits for everything launched so far and reports what went wrong in it. */
FLASH_STEPS_API int flash_steps_synchronize(void);

#ifdef __cplusplus
}
#endif

#endif
