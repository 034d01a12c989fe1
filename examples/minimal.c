/* Attention in C: one query, two keys. The scores are 0 and ln 3, so the weights are 1/4 and 3/4. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tandem/tandem.h>

static tandem_tensor view(void* data, int64_t batch, int64_t seqlen, int64_t nheads, int64_t headdim) {
  tandem_tensor tensor = {0};
  tensor.data = data;
  tensor.dtype = TANDEM_FP32;
  tensor.ndim = 4;
  tensor.shape[0] = batch, tensor.stride[0] = seqlen * nheads * headdim;
  tensor.shape[1] = seqlen, tensor.stride[1] = nheads * headdim;
  tensor.shape[2] = nheads, tensor.stride[2] = headdim;
  tensor.shape[3] = headdim, tensor.stride[3] = 1;
  return tensor;
}

int main(void) {
  float q[1] = {1}, k[2] = {0, 1.0986123f}, v[2] = {0, 4}, out[1];

  tandem_forward_params params = {.struct_size = sizeof params}; /* all else 0: plain attention on the CPU */
  params.q = view(q, 1, 1, 1, 1);
  params.k = view(k, 1, 2, 1, 1);
  params.v = view(v, 1, 2, 1, 1);
  params.out = view(out, 1, 1, 1, 1);

  uint64_t bytes = 0, alignment = 1;
  tandem_status status = tandem_forward_workspace(&params, &bytes, &alignment);
  char* memory = malloc(bytes + alignment);
  if (memory == NULL) return 1;
  params.exec.workspace = memory + (alignment - (uintptr_t)memory % alignment);
  params.exec.workspace_bytes = bytes;
  if (status == TANDEM_OK) status = tandem_forward(&params);
  free(memory);

  if (status != TANDEM_OK) {
    fprintf(stderr, "%s: %s\n", tandem_status_name(status), tandem_last_error());
    return 1;
  }
  printf("out = %.6f; 1/4 * 0 + 3/4 * 4 = 3\n", out[0]);
  return fabs(out[0] - 3.0) < 1e-5 ? 0 : 1;
}
