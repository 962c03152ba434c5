/* sum.c: each worker fills a tensor and finds in it the sum over all workers. */
#include <mercurystack/mercury.h>
#include <stdio.h>
#define CHECK(call) if ((call) < 0) return fprintf(stderr, #call ": %s\n", mercury_last_error()), 1

int main(void) {
  mercury_job_options options;
  mercury_job_options_init(&options, sizeof options);
  options.name = "sum";
  CHECK(mercury_job_options_from_env(&options)); /* who this is, from your launcher */
  mercury_context *context;
  CHECK(mercury_attach(NULL, &context)); /* the host's daemon, or the engine in this process */
  mercury_job *job;
  CHECK(mercury_job_open(context, &options, &job)); /* returns when all are there */
  if (options.role == MERCURY_ROLE_SERVER) {
    CHECK(mercury_job_wait_end(job, MERCURY_FOREVER));
  } else {
    mercury_tensor_options tensor = {.size = sizeof tensor, .id = 7, .numel = 1000,
                                     .dtype = MERCURY_DTYPE_F32};
    CHECK(mercury_alloc(context, 1000 * sizeof(float), &tensor.data));
    CHECK(mercury_declare(job, &tensor, 1));
    float *gradient = tensor.data;
    for (int i = 0; i < 1000; ++i) gradient[i] = (float)(mercury_job_get_rank(job) + 1);
    mercury_handle handle;
    CHECK(mercury_push_pull(job, 7, MERCURY_DEFAULT_PRIORITY, &handle)); /* the gradient leaves */
    CHECK(mercury_wait(job, handle, MERCURY_FOREVER)); /* the sum is in its place */
    printf("worker %d: %.0f\n", mercury_job_get_rank(job), gradient[999]);
  }
  mercury_job_close(job);
  mercury_detach(context);
}
