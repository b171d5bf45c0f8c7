// Before glibc 2.34 a program ran its own constructors, through a function that it handed to __libc_start_main; the
// start file of a newer one hands none. Linked with --wrap=__libc_start_main (cmake/portable.cmake).
typedef int (*Main)(int, char**, char**);
typedef void (*Initializer)(int, char**, char**);

extern Initializer __init_array_start[] __attribute__((visibility("hidden")));
extern Initializer __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void);
int __real___libc_start_main(Main, int, char**, Initializer, void (*)(void), void (*)(void), void*);

static void run_constructors(int argc, char** argv, char** environment) {
  _init();
  for (Initializer* each = __init_array_start; each < __init_array_end; ++each) (*each)(argc, argv, environment);
}

int __wrap___libc_start_main(Main main, int argc, char** argv, Initializer init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end) {
  return __real___libc_start_main(main, argc, argv, run_constructors, fini, loader_fini, stack_end);
}
