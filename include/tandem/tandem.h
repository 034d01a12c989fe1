/*
 * Tandem: exact attention (FlashAttention-3) for NVIDIA Hopper GPUs and for CPUs. The C interface, C99.
 *
 * For batch b, query head h and query row i:
 *
 *     S_j = softmax_scale * dot(q_i, k_j)             then, if softcap > 0:  S_j = softcap * tanh(S_j / softcap)
 *     P_j = exp(S_j) / (sum over visible keys of exp(S) + exp(sink_h))       (the sink's term only if a sink is given)
 *     O_i = sum over visible keys j of P_j v_j
 *     LSE_i = log(sum over visible keys of exp(S) + exp(sink_h))
 *
 * docs/CONTRACT.md states every promise in full; the numbers in brackets below refer to it.
 *
 * Each operation has three calls that take the same parameter struct:
 *
 *     tandem_X_check      is this problem valid, and can a backend run it? Tensors may have data == NULL.
 *     tandem_X_workspace  bytes and alignment of the scratch memory that the run needs. Tensors may have data == NULL.
 *     tandem_X            runs it.
 *
 * Every call returns a tandem_status. On an error nothing was written (but for TANDEM_OUT_OF_MEMORY and
 * TANDEM_DEVICE_ERROR during the run, after which the outputs may hold anything), and tandem_last_error() is one
 * sentence that names the argument, what was found and what is allowed. A struct that is all zero but for struct_size
 * and its tensors asks for plain attention: zero is the default of every option.
 *
 * ABI: struct_size comes first and fields are only ever added at the end of the parameter structs. A caller built
 * against an older header works unchanged; a caller built against a newer one works as long as the bytes that this
 * library does not know are zero. tandem_tensor, tandem_device, tandem_mask and tandem_execution never change.
 *
 * Thread safety: all calls may run concurrently. The last-error text belongs to the calling thread.
 */
#ifndef TANDEM_TANDEM_H_
#define TANDEM_TANDEM_H_

#include <stddef.h>
#include <stdint.h>

#if defined(TANDEM_STATIC)
#define TANDEM_API
#elif defined(_WIN32)
#if defined(TANDEM_BUILDING)
#define TANDEM_API __declspec(dllexport)
#else
#define TANDEM_API __declspec(dllimport)
#endif
#else
#define TANDEM_API __attribute__((visibility("default")))
#endif

#define TANDEM_VERSION_MAJOR 0
#define TANDEM_VERSION_MINOR 1
#define TANDEM_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------------- status codes */

typedef int32_t tandem_status;
enum {
  TANDEM_OK = 0,
  TANDEM_INVALID_ARGUMENT = 1,    /* the parameters contradict each other or the contract */
  TANDEM_UNSUPPORTED = 2,         /* valid, but no backend (or not the forced one) can run it */
  TANDEM_WORKSPACE_TOO_SMALL = 3, /* exec.workspace is missing, misaligned or smaller than tandem_X_workspace says */
  TANDEM_NO_DEVICE = 4,           /* no such device, no driver, or a GPU of another generation */
  TANDEM_DEVICE_ERROR = 5,        /* the driver refused a launch */
  TANDEM_OUT_OF_MEMORY = 6,       /* host memory */
  TANDEM_INTERNAL_ERROR = 7       /* a bug in Tandem: please report it */
};

/* ---------------------------------------------------------------------------------------------------------- tensors */

enum {
  TANDEM_DTYPE_NONE = 0,
  TANDEM_FP64 = 1, /* CPU only */
  TANDEM_FP32 = 2, /* CPU only */
  TANDEM_FP16 = 3,
  TANDEM_BF16 = 4,
  TANDEM_E4M3 = 5, /* fp8, finite and NaN only (torch.float8_e4m3fn) */
  TANDEM_E5M2 = 6, /* fp8 with infinities (torch.float8_e5m2) */
  TANDEM_INT32 = 7 /* offsets, lengths and row intervals */
};

#define TANDEM_MAX_NDIM 6

/*
 * A view of memory that the caller owns. Frozen: this struct never changes.
 * Absent optional tensors are all zero (ndim == 0). Strides count elements, are never negative, and are free on axes of
 * size 1; on inputs they may be 0 (a broadcast). The last axis of q, k, v, out and their gradients is contiguous [10].
 * Entries of shape and stride at or beyond ndim are ignored. The library never writes to an input.
 */
typedef struct tandem_tensor {
  void* data;
  int32_t dtype; /* TANDEM_FP64 ... */
  int32_t ndim;
  int64_t shape[TANDEM_MAX_NDIM];
  int64_t stride[TANDEM_MAX_NDIM];
} tandem_tensor;

/* --------------------------------------------------------------------------------------------- where and how to run */

enum { TANDEM_CPU = 0, TANDEM_CUDA = 1 };

typedef struct tandem_device {
  int32_t type;    /* TANDEM_CPU or TANDEM_CUDA: where every tensor and the workspace live */
  int32_t ordinal; /* CUDA device number; 0 on the CPU */
} tandem_device;

enum {
  TANDEM_BACKEND_AUTO = 0,      /* environment variable TANDEM_BACKEND if set, else the best for the device */
  TANDEM_BACKEND_REFERENCE = 1, /* "reference": CPU, double precision, whole score matrix, slow: the oracle */
  TANDEM_BACKEND_TILED = 2,     /* "tiled": CPU, SIMD and threads, memory linear in seqlen */
  TANDEM_BACKEND_SM90 = 3       /* "sm90": NVIDIA Hopper */
};

/* Frozen: new execution options are added at the end of the parameter structs. */
typedef struct tandem_execution {
  tandem_device device;
  void* stream;    /* CUDA: a cudaStream_t (NULL: the default stream). CPU: must be NULL */
  void* workspace; /* scratch memory on `device`; may be NULL if tandem_X_workspace says 0 bytes */
  uint64_t workspace_bytes;
  int32_t backend;       /* TANDEM_BACKEND_...; forcing one that cannot serve is an error */
  int32_t num_threads;   /* CPU threads of this call, at most 256 of which run; 0: OpenMP's default. Does not change any
                            bit of the result */
  int32_t sm_margin;     /* CUDA: SMs left free for other work; 0 elsewhere */
  int32_t needs_grad;    /* 1: the forward refuses what the backward cannot do [13] */
  int32_t deterministic; /* 1: the backward's results are bitwise equal on every run, or it refuses [12] */
  int32_t checked;       /* 1: validate offsets, lengths and intervals by value (also: TANDEM_CHECK=1) [13]. CUDA: this
                            waits for the stream, so not while it is captured */
} tandem_execution;

/* ------------------------------------------------------------------------------------------------------------ masks */

/*
 * Query row i of a sequence stands at key position i + d, where d = seqlen_k - seqlen_q of the used lengths
 * (bottom-right alignment), or d = 0 if top_left is 1 [3]. Row i sees key j if all of these hold:
 *
 *     causal           j <= i + d
 *     has_window       i + d - window_left <= j <= i + d + window_right     (-1 opens a side)
 *     attention_chunk  j / C == floor((i + d) / C)                          (C = attention_chunk > 0)
 *     lo, hi           lo[i] <= j < hi[i]                                   (positions within the sequence [4])
 *
 * A row that sees no key has O = 0 and LSE = -inf (with a sink: LSE = sink) [5]. Frozen.
 */
typedef struct tandem_mask {
  int32_t causal;          /* 0 or 1 */
  int32_t top_left;        /* 0 or 1 */
  int32_t has_window;      /* 0: window_left and window_right must be 0 or -1 and are ignored */
  int32_t reserved;        /* 0 */
  int64_t window_left;     /* >= 0, or -1: open */
  int64_t window_right;    /* >= 0, or -1: open */
  int64_t attention_chunk; /* 0: none */
  tandem_tensor lo; /* int32, optional: (batch or 1, nheads_q or 1, seqlen_q); packed: (nheads_q or 1, total_q) */
  tandem_tensor hi; /* the same; either may be given alone */
} tandem_mask;

/* ---------------------------------------------------------------------------------------------------------- forward */

/* Dense: every sequence of the batch has seqlen_q query rows and seqlen_k keys (or fewer, by seqused). */
typedef struct tandem_forward_params {
  uint64_t struct_size; /* sizeof(tandem_forward_params) */
  tandem_execution exec;

  tandem_tensor q;   /* (batch, seqlen_q, nheads_q, headdim) */
  tandem_tensor k;   /* (batch, seqlen_k, nheads_k, headdim), dtype of q; nheads_q % nheads_k == 0 [9] */
  tandem_tensor v;   /* (batch, seqlen_k, nheads_k, headdim_v), dtype of q; or see v_transposed */
  tandem_tensor out; /* (batch, seqlen_q, nheads_q, headdim_v); for fp64 and fp32 q their own dtype, for 16-bit q its
                        own or fp32, for fp8 q fp16, bf16 or fp32. Rows outside every sequence are written as 0 [8] */
  tandem_tensor lse; /* optional: fp32 (batch, nheads_q, seqlen_q), any strides; fp64 is allowed for fp64 q [6] */

  tandem_tensor sink; /* optional: fp32 (nheads_q), one more logit per head in scaled units (fp64 for fp64 q) */
  /* Optional, fp8 only: fp32 factors that turn stored values into real ones; absent is 1. Shape (1), (batch, nheads) or
     (batch, nheads, blocks of 128 rows), nheads being the tensor's own; q_scale may also have nheads_k heads. Whatever
     the tiles of a kernel, blocks are counted from the start of each sequence. */
  tandem_tensor q_scale;
  tandem_tensor k_scale;
  tandem_tensor v_scale;

  tandem_tensor seqused_q; /* optional: int32 (batch), how many rows of each sequence count */
  tandem_tensor seqused_k; /* optional: int32 (batch) */

  tandem_mask mask;
  double softmax_scale;      /* used if has_softmax_scale is 1; zero and negative values are legal */
  double softcap;            /* 0: none; else > 0 */
  int32_t has_softmax_scale; /* 0: 1 / sqrt(headdim) [2] */
  int32_t reserved;          /* 0 */

  int32_t v_transposed; /* 1 (e4m3 only): v is (batch, nheads_k, headdim_v, slots), as tandem_quantize_fp8 writes it */
  int32_t reserved_2;   /* 0 */
} tandem_forward_params;

TANDEM_API tandem_status tandem_forward_check(const tandem_forward_params* params);
TANDEM_API tandem_status tandem_forward_workspace(const tandem_forward_params* params, uint64_t* bytes,
                                                  uint64_t* alignment);
TANDEM_API tandem_status tandem_forward(const tandem_forward_params* params);

/* Packed sequences of different lengths: rows cu_seqlens[b] to cu_seqlens[b + 1] belong to sequence b. */
typedef struct tandem_varlen_forward_params {
  uint64_t struct_size; /* sizeof(tandem_varlen_forward_params) */
  tandem_execution exec;

  tandem_tensor q;   /* (total_q, nheads_q, headdim) */
  tandem_tensor k;   /* (total_k, nheads_k, headdim) */
  tandem_tensor v;   /* (total_k, nheads_k, headdim_v) */
  tandem_tensor out; /* (total_q, nheads_q, headdim_v) */
  tandem_tensor lse; /* optional: (nheads_q, total_q) */

  tandem_tensor sink;    /* as in tandem_forward_params */
  tandem_tensor q_scale; /* as in tandem_forward_params; blocks are counted from the start of each sequence, */
  tandem_tensor k_scale; /* and their axis is long enough for the longest one */
  tandem_tensor v_scale;

  tandem_tensor cu_seqlens_q; /* int32 (batch + 1), non-decreasing, from 0 to at most total_q */
  tandem_tensor cu_seqlens_k; /* int32 (batch + 1) */
  tandem_tensor seqused_q;    /* optional: int32 (batch), how many of each sequence's rows count; the rest is a gap */
  tandem_tensor seqused_k;    /* optional: int32 (batch) */
  int64_t max_seqlen_q;       /* hint only, never trusted; 0: unknown */
  int64_t max_seqlen_k;       /* hint only */

  tandem_mask mask;
  double softmax_scale;
  double softcap;
  int32_t has_softmax_scale;
  int32_t reserved; /* 0 */

  int32_t v_transposed; /* 1 (e4m3 only): v is (nheads_k, headdim_v, slots), as tandem_quantize_fp8 writes it */
  int32_t reserved_2;   /* 0 */
} tandem_varlen_forward_params;

TANDEM_API tandem_status tandem_varlen_forward_check(const tandem_varlen_forward_params* params);
TANDEM_API tandem_status tandem_varlen_forward_workspace(const tandem_varlen_forward_params* params, uint64_t* bytes,
                                                         uint64_t* alignment);
TANDEM_API tandem_status tandem_varlen_forward(const tandem_varlen_forward_params* params);

/* --------------------------------------------------------------------------------------------------------- backward */

/*
 * The gradients of the forward with the same parameters. With delta_i = dot(dO_i, O_i) - dLSE_i:
 *
 *     dS = P * (dO V^T - delta) * (1 - (S / softcap)^2 if softcap)      dQ = softmax_scale dS K
 *     dK = softmax_scale dS^T Q       dV = P^T dO       dsink_h = - sum over b, i of exp(sink_h - LSE_i) delta_i
 *
 * out and lse are the forward's. All gradients are overwritten, never accumulated into. fp8 is refused.
 */
typedef struct tandem_backward_params {
  uint64_t struct_size; /* sizeof(tandem_backward_params) */
  tandem_execution exec;

  tandem_tensor q, k, v;    /* as in the forward */
  tandem_tensor out;        /* the forward's result */
  tandem_tensor lse;        /* the forward's result, required */
  tandem_tensor dout;       /* shape and dtype of out */
  tandem_tensor dlse;       /* optional: shape and dtype of lse; ignored on rows whose LSE is not finite [6] */
  tandem_tensor dq, dk, dv; /* shapes and dtypes of q, k, v. Rows outside every sequence are written as 0 [8] */
  tandem_tensor sink;       /* the forward's */
  tandem_tensor dsink;      /* shape and dtype of sink; required if and only if a sink is given */

  tandem_tensor seqused_q, seqused_k;

  tandem_mask mask;
  double softmax_scale;
  double softcap;
  int32_t has_softmax_scale;
  int32_t reserved; /* 0 */
} tandem_backward_params;

TANDEM_API tandem_status tandem_backward_check(const tandem_backward_params* params);
TANDEM_API tandem_status tandem_backward_workspace(const tandem_backward_params* params, uint64_t* bytes,
                                                   uint64_t* alignment);
TANDEM_API tandem_status tandem_backward(const tandem_backward_params* params);

typedef struct tandem_varlen_backward_params {
  uint64_t struct_size; /* sizeof(tandem_varlen_backward_params) */
  tandem_execution exec;

  tandem_tensor q, k, v;
  tandem_tensor out;
  tandem_tensor lse;
  tandem_tensor dout;
  tandem_tensor dlse;
  tandem_tensor dq, dk, dv;
  tandem_tensor sink;
  tandem_tensor dsink;

  tandem_tensor cu_seqlens_q, cu_seqlens_k;
  tandem_tensor seqused_q, seqused_k;
  int64_t max_seqlen_q; /* hint only */
  int64_t max_seqlen_k; /* hint only */

  tandem_mask mask;
  double softmax_scale;
  double softcap;
  int32_t has_softmax_scale;
  int32_t reserved; /* 0 */
} tandem_varlen_backward_params;

TANDEM_API tandem_status tandem_varlen_backward_check(const tandem_varlen_backward_params* params);
TANDEM_API tandem_status tandem_varlen_backward_workspace(const tandem_varlen_backward_params* params, uint64_t* bytes,
                                                          uint64_t* alignment);
TANDEM_API tandem_status tandem_varlen_backward(const tandem_varlen_backward_params* params);

/* ------------------------------------------------------------------------------------------------------------ merge */

/*
 * Joins the results of attention over disjoint sets of keys (n of them) into the result over their union:
 *
 *     LSE = log(sum_n exp(LSE_n) + exp(sink))          O = sum_n exp(LSE_n - LSE) O_n
 *
 * The partial results exclude the sink; it is added here, once [6]. A partial row with LSE_n = -inf counts as empty
 * whatever its O_n holds; if all are empty, O = 0 and LSE = -inf (or sink). A row with one part that is not empty
 * and no sink is copied bit for bit.
 */
typedef struct tandem_merge_params {
  uint64_t struct_size; /* sizeof(tandem_merge_params) */
  tandem_execution exec;

  tandem_tensor out_partial; /* (n, batch, seqlen_q, nheads_q, headdim_v); packed: (n, total_q, nheads_q, headdim_v) */
  tandem_tensor lse_partial; /* fp32 (n, batch, nheads_q, seqlen_q); packed: (n, nheads_q, total_q); any strides */
  tandem_tensor sink;        /* optional: fp32 (nheads_q) */
  tandem_tensor out;         /* (batch, seqlen_q, nheads_q, headdim_v); packed: (total_q, nheads_q, headdim_v);
                                the dtype of out_partial, or any float type of 32 bits or fewer (not fp8) */
  tandem_tensor lse;         /* optional: fp32 (batch, nheads_q, seqlen_q); packed: (nheads_q, total_q) */
} tandem_merge_params;

TANDEM_API tandem_status tandem_merge_check(const tandem_merge_params* params);
TANDEM_API tandem_status tandem_merge_workspace(const tandem_merge_params* params, uint64_t* bytes,
                                                uint64_t* alignment);
TANDEM_API tandem_status tandem_merge(const tandem_merge_params* params);

/* --------------------------------------------------------------------------------------------- quantisation to fp8 */

/*
 * Turns q, k or v into e4m3 and the scales of tandem_forward: x is about out * scale. For each row of each sequence, in
 * this order, all of it in fp32 or better:
 *
 *     rotary embedding     if rotary_cos is given; row i of sequence b stands at position rotary_offset[b] + i
 *     rotation             if rotate is 1: y = H D x / sqrt(headdim), with a diagonal D of random signs and a Hadamard
 *                          matrix H. It spreads outliers over the row. Q and K rotated with one seed have the products
 *                          of Q and K. headdim must be a power of two or 12 times one; others are refused
 *     scale                the largest magnitude of the group / 448, but at least 2^-126
 *     out                  y / scale, rounded to nearest even
 *
 * The shape of `scale` chooses the groups: all rows, those of a (sequence, head), or blocks of 128 rows of these
 * counted from the start of each sequence. Values that are not finite become NaN, and no scale counts them. The result
 * is the same on every run and for every number of threads [12].
 *
 * Rows outside every sequence are not read, and become 0.
 *
 * transposed (for V): the rows of a head lie along the last axis of `out`, in *slots*, so that a tile of V^T is one
 * copy with the keys innermost, as the fp8 tensor cores of Hopper want it. Sequence b begins at slot
 *
 *     dense: 0 of its batch entry, which has 16 * ceil(seqlen / 16) slots
 *     packed: 16 * (floor(cu_seqlens[b] / 16) + b), of 16 * (floor(total / 16) + batch) in all
 *
 * and key j of a sequence lies at slot 16 * floor(j / 16) + p of it, where the 16 keys of a group are interleaved:
 *
 *     p    0  1  2  3   4  5  6  7   8  9 10 11  12 13 14 15
 *     j    0  1  8  9   2  3 10 11   4  5 12 13   6  7 14 15     (mod 16)
 *
 * This is the order in which the accumulators of S hold their columns: P is the next product's operand as it stands.
 * Slots without a key are 0. The GPU wants strides that are multiples of 16 bytes.
 */
typedef struct tandem_quantize_fp8_params {
  uint64_t struct_size; /* sizeof(tandem_quantize_fp8_params) */
  tandem_execution exec;

  tandem_tensor x; /* (batch, seqlen, nheads, headdim), packed (total, nheads, headdim); fp16, bf16, on the CPU fp32 */
  tandem_tensor out;   /* e4m3, the shape of x; transposed: (batch, nheads, headdim, slots), packed (nheads, headdim,
                          slots) */
  tandem_tensor scale; /* fp32: (1), (batch, nheads) or (batch, nheads, ceil(seqlen / 128)); packed: the last axis is
                          long enough for the longest sequence, whose rows beyond it use its last block */

  tandem_tensor cu_seqlens; /* int32 (batch + 1); required if x is packed, and only then */
  tandem_tensor seqused;    /* optional: int32 (batch), how many of each sequence's rows count */

  tandem_tensor rotary_cos; /* optional: fp32 or the dtype of x, (positions, rotary_dim / 2), rotary_dim <= headdim: */
  tandem_tensor rotary_sin; /* the first rotary_dim columns turn. Positions are clamped to the table */
  tandem_tensor rotary_offset; /* optional: int32 (batch); absent: 0 */

  uint64_t seed;              /* of D; any number */
  int32_t rotate;             /* 0 or 1 */
  int32_t rotary_interleaved; /* 1: columns (0, 1), (2, 3) ... turn; 0: column c with column rotary_dim / 2 + c */
  int32_t transposed;         /* 0 or 1, without rotate and rotary embedding */
  int32_t reserved;           /* 0 */
} tandem_quantize_fp8_params;

TANDEM_API tandem_status tandem_quantize_fp8_check(const tandem_quantize_fp8_params* params);
TANDEM_API tandem_status tandem_quantize_fp8_workspace(const tandem_quantize_fp8_params* params, uint64_t* bytes,
                                                       uint64_t* alignment);
TANDEM_API tandem_status tandem_quantize_fp8(const tandem_quantize_fp8_params* params);

/* ---------------------------------------------------------------------------------------------- library and devices */

/* Why the calling thread's last call that returns a tandem_status failed, in one sentence; "" if it did not. Valid
 * until the thread's next Tandem call. */
TANDEM_API const char* tandem_last_error(void);
TANDEM_API const char* tandem_status_name(tandem_status status); /* "TANDEM_OK"; "unknown status" for other numbers */
TANDEM_API const char* tandem_dtype_name(int32_t dtype);         /* "bf16"; "unknown dtype" */
TANDEM_API const char* tandem_version(void);                     /* "0.1.0" of the library that runs */

/* Does, once, what a first call on this device would do (loading kernels), so that later calls can be captured in a
 * CUDA graph [14]. On the CPU there is nothing to do. */
TANDEM_API tandem_status tandem_prepare(tandem_device device);

TANDEM_API const char* tandem_backend_name(int32_t backend); /* "tiled"; "unknown backend" */
/* TANDEM_OK if the backend was built and can run on the device; else a code, and tandem_last_error() says why not. */
TANDEM_API tandem_status tandem_backend_available(int32_t backend, tandem_device device);
/* Which backend a call with exec.backend == requested on this device would run on, TANDEM_BACKEND included. */
TANDEM_API tandem_status tandem_backend_select(int32_t requested, tandem_device device, int32_t* backend);
/* One line about what the backend runs on ("AVX3, 2 threads"), or why it cannot. Valid until the thread's next call. */
TANDEM_API const char* tandem_backend_description(int32_t backend, tandem_device device);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TANDEM_TANDEM_H_ */
