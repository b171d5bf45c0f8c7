// What the compiler's headers and its static libraries take from a glibc newer than 2.28, for programs that also run on
// that one (cmake/portable.cmake). Where the machine's glibc has the newer function, that one is used if it does more.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

// Glibc 2.32. A promise that there is one thread only, which nobody makes here.
HIDDEN char __libc_single_threaded = 0;

// Glibc 2.33; before, these were inline calls of versioned functions.
#ifdef __x86_64__
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
int __xstat(int version, const char* path, struct stat* out);
int __lxstat(int version, const char* path, struct stat* out);
int __fxstat(int version, int file, struct stat* out);
int __fxstatat(int version, int folder, const char* path, struct stat* out, int flags);
HIDDEN int stat(const char* path, struct stat* out) { return __xstat(kStatVersion, path, out); }
HIDDEN int lstat(const char* path, struct stat* out) { return __lxstat(kStatVersion, path, out); }
HIDDEN int fstat(int file, struct stat* out) { return __fxstat(kStatVersion, file, out); }
HIDDEN int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return __fxstatat(kStatVersion, folder, path, out, flags);
}

// The same under the names for large files, which 64-bit machines have in any case.
HIDDEN int stat64(const char*, struct stat64*) __attribute__((alias("stat")));
HIDDEN int lstat64(const char*, struct stat64*) __attribute__((alias("lstat")));
HIDDEN int fstat64(int, struct stat64*) __attribute__((alias("fstat")));
HIDDEN int fstatat64(int, const char*, struct stat64*, int) __attribute__((alias("fstatat")));

// Glibc 2.36.
HIDDEN unsigned int arc4random(void) {
  unsigned int value = 0;
  while (getentropy(&value, sizeof value) != 0) {
  }
  return value;
}

// Glibc 2.30: waits until a time of the clock given. The older function knows the condition's own clock only, which is
// the wall clock; those who wait look at the time again when it returns.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* deadline) {
  typedef int (*ClockWait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static ClockWait newer;
  static int looked_up;
  if (!__atomic_load_n(&looked_up, __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&newer, (ClockWait)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"), __ATOMIC_RELAXED);
    __atomic_store_n(&looked_up, 1, __ATOMIC_RELEASE);
  }
  const ClockWait wait = __atomic_load_n(&newer, __ATOMIC_RELAXED);
  if (wait != NULL) return wait(condition, mutex, clock, deadline);
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, deadline);
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  wall.tv_sec += deadline->tv_sec - now.tv_sec;
  wall.tv_nsec += deadline->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) wall.tv_nsec += 1000000000, --wall.tv_sec;
  if (wall.tv_nsec >= 1000000000) wall.tv_nsec -= 1000000000, ++wall.tv_sec;
  return pthread_cond_timedwait(condition, mutex, &wall);
}

// Glibc 2.35: where an address lies, for the unwinder. The loop over all loaded objects is what the unwinder did before.
struct Search {
  ElfW(Addr) address;
  struct dl_find_object* found;
};

static int object_holds(struct dl_phdr_info* info, size_t size, void* data) {
  struct Search* search = data;
  const ElfW(Phdr) *holding = NULL, *eh_frame = NULL;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const ElfW(Addr) start = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_LOAD && search->address >= start && search->address < start + part->p_memsz) holding = part;
    if (part->p_type == PT_GNU_EH_FRAME) eh_frame = part;
  }
  if (holding == NULL || eh_frame == NULL) return 0;
  memset(search->found, 0, sizeof *search->found);
  search->found->dlfo_map_start = (void*)(info->dlpi_addr + holding->p_vaddr);
  search->found->dlfo_map_end = (void*)(info->dlpi_addr + holding->p_vaddr + holding->p_memsz);
  search->found->dlfo_eh_frame = (void*)(info->dlpi_addr + eh_frame->p_vaddr);
  return 1;
}

HIDDEN int _dl_find_object(void* address, struct dl_find_object* found) {
  struct Search search = {(ElfW(Addr))address, found};
  return dl_iterate_phdr(object_holds, &search) == 1 ? 0 : -1;
}
