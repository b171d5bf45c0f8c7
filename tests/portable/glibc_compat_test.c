// cmake/portable/glibc_compat.c beside the machine's own glibc: the same answers, also where that glibc is too old to be
// asked (dlsym finds nothing).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

static int real_stat(const char* path, struct stat* out) { return stat(path, out); }
static int real_lstat(const char* path, struct stat* out) { return lstat(path, out); }
static int real_fstat(int file, struct stat* out) { return fstat(file, out); }

// The file under test, under other names.
#define dlsym(library, name) NULL
#define stat(path, out) compat_stat(path, out)
#define lstat(path, out) compat_lstat(path, out)
#define fstat(file, out) compat_fstat(file, out)
#define fstatat(folder, path, out, flags) compat_fstatat(folder, path, out, flags)
#define stat64(path, out) compat_stat64(path, out)
#define lstat64(path, out) compat_lstat64(path, out)
#define fstat64(file, out) compat_fstat64(file, out)
#define fstatat64(folder, path, out, flags) compat_fstatat64(folder, path, out, flags)
#define __libc_single_threaded compat_single_threaded
#define arc4random compat_arc4random
#define pthread_cond_clockwait compat_clockwait
#define _dl_find_object compat_find_object
#define alias(name) alias("compat_" name)
#include "../../cmake/portable/glibc_compat.c"
#undef _dl_find_object

static int failures = 0;
#define CHECK(what)                                                   \
  do {                                                                \
    if (!(what)) failures++, printf("%d: not true: %s\n", __LINE__, #what); \
  } while (0)

static void test_stat(void) {
  struct stat ours, real;
  memset(&ours, 0, sizeof ours), memset(&real, 0, sizeof real);
  CHECK(compat_stat("/proc/self/exe", &ours) == 0 && real_stat("/proc/self/exe", &real) == 0);
  CHECK(ours.st_ino == real.st_ino && ours.st_size == real.st_size && ours.st_mode == real.st_mode);
  CHECK(compat_lstat("/proc/self/exe", &ours) == 0 && real_lstat("/proc/self/exe", &real) == 0);
  CHECK(S_ISLNK(ours.st_mode) && ours.st_mode == real.st_mode);
  CHECK(compat_fstat(0, &ours) == 0 && real_fstat(0, &real) == 0 && ours.st_ino == real.st_ino);
  CHECK(compat_fstatat(AT_FDCWD, "/", &ours, 0) == 0 && S_ISDIR(ours.st_mode));
  CHECK(compat_stat("/no/such/file", &ours) == -1 && errno == ENOENT);
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void* wake(void* unused) {
  pthread_mutex_lock(&mutex);
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&mutex);
  return unused;
}

static void test_clock_wait(void) {
  struct timespec deadline;
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_nsec += 50000000;
  if (deadline.tv_nsec >= 1000000000) deadline.tv_nsec -= 1000000000, ++deadline.tv_sec;
  const double start = now_s();
  pthread_mutex_lock(&mutex);
  CHECK(compat_clockwait(&changed, &mutex, CLOCK_MONOTONIC, &deadline) == ETIMEDOUT);
  CHECK(now_s() - start > 0.04);
  deadline.tv_sec += 600;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, wake, NULL) == 0);
  CHECK(compat_clockwait(&changed, &mutex, CLOCK_MONOTONIC, &deadline) == 0);
  pthread_mutex_unlock(&mutex);
  pthread_join(thread, NULL);
}

static void test_find_object(void) {
  struct dl_find_object found;
  int local = 0;
  CHECK(compat_find_object((void*)test_find_object, &found) == 0);
  CHECK((char*)found.dlfo_map_start <= (char*)test_find_object && (char*)test_find_object < (char*)found.dlfo_map_end);
  CHECK(found.dlfo_eh_frame != NULL);
  struct dl_find_object library;
  CHECK(compat_find_object((void*)printf, &library) == 0 && library.dlfo_eh_frame != found.dlfo_eh_frame);
  CHECK(compat_find_object(&local, &found) == -1);  // the stack is no object
#if __GLIBC_PREREQ(2, 35)
  struct dl_find_object real;
  CHECK(_dl_find_object((void*)printf, &real) == 0 && real.dlfo_eh_frame == library.dlfo_eh_frame);
#endif
}

int main(void) {
  test_stat();
  test_clock_wait();
  test_find_object();
  CHECK(compat_arc4random() != compat_arc4random() || compat_arc4random() != compat_arc4random());
  CHECK(compat_single_threaded == 0);
  if (failures == 0) puts("glibc_compat: all as glibc");
  return failures != 0;
}
