/* A shared library that is no plug-in. */
int ww_something_else(void) { return 0; }
