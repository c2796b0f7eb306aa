// Lets the wall clock of one process jump: loaded before the C library (LD_PRELOAD), it adds to the real time what is in
// the file $TEST_CLOCKS/PID, a 64-bit number of seconds that may change at any time. Files of other processes are made
// when these start. Monotonic clocks, and what the kernel writes into the times of files, stay as they are.
//
// Of what waits until a wall clock's time there is only what Python 3.10 waits with for its locks; 3.11 does not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// How often those who wait look whether the clock has jumped.
#define SLICE_NS 5000000

static int64_t nothing;
static volatile int64_t *ahead = &nothing;

__attribute__((constructor)) static void open_own_file(void) {
  char path[4096];
  const char *folder = getenv("TEST_CLOCKS");
  if (folder == NULL) {
    return;
  }
  snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof *ahead) != 0) {
    abort();
  }
  void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    abort();
  }
  close(file);
  ahead = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) {
    now->tv_sec += *ahead;
  }
  return (int)result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exactly;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exactly);
  now->tv_sec = exactly.tv_sec;
  now->tv_usec = exactly.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec exactly;
  clock_gettime(CLOCK_REALTIME, &exactly);
  if (seconds != NULL) {
    *seconds = exactly.tv_sec;
  }
  return exactly.tv_sec;
}

static int is_over(const struct timespec *end) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec != end->tv_sec ? now.tv_sec > end->tv_sec : now.tv_nsec >= end->tv_nsec;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict end) {
  int (*wait_really)(sem_t *, const struct timespec *) = dlsym(RTLD_NEXT, "sem_timedwait");
  for (;;) {
    struct timespec slice;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &slice);
    slice.tv_nsec += is_over(end) ? 0 : SLICE_NS;
    slice.tv_sec += slice.tv_nsec / 1000000000;
    slice.tv_nsec %= 1000000000;
    if (wait_really(semaphore, &slice) == 0) {
      return 0;
    }
    if (errno != ETIMEDOUT || is_over(end)) {
      return -1;
    }
  }
}
