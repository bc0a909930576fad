/* Preloaded into a process: link() fails with the error number in LINK_ERROR. */
#include <errno.h>
#include <stdlib.h>

int link(const char *source, const char *target) {
    (void)source;
    (void)target;
    errno = atoi(getenv("LINK_ERROR"));
    return -1;
}
