/* Record what a process does to the files below a folder, and which LSNs it reports to PostgreSQL as flushed.
 *
 * Preloaded (LD_PRELOAD) into ingest, and so into the JVM that it starts. PGDELTA_POWER_FOLDER is the folder,
 * PGDELTA_POWER_LOG the file that gets a line for each event, in order; all processes append to one. Fields,
 * separated by tabs: kind, thread, inode, two numbers, path, other path.
 *
 * What makes something durable is recorded so that no more is credited than was done: changes after the call,
 * fsync before it and after it, a report of a flushed LSN before it. Not seen: writes by mmap or stdio;
 * sync() and syncfs() count as nothing. PGDELTA_POWER_KILL ends the process group with SIGKILL once a link
 * was made whose path ends so.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int log_fd = -1;
static ino_t log_inode;

static const char *folder(void) { return getenv("PGDELTA_POWER_FOLDER"); }

static int open_log(void) {
    struct stat status;
    const char *path = getenv("PGDELTA_POWER_LOG");
    /* A child closes what it inherited before it runs another program, and may use the number again. */
    if (log_fd >= 0 && !fstat(log_fd, &status) && status.st_ino == log_inode) return log_fd;
    if (!path) return -1;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return -1;
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 500);
    syscall(SYS_close, fd);
    if (log_fd >= 0 && !fstat(log_fd, &status)) log_inode = status.st_ino;
    return log_fd;
}

static void record(const char *kind, ino_t inode, long long first, long long second, const char *path,
                   const char *other) {
    char line[2 * PATH_MAX + 128];
    int error = errno;
    int length = snprintf(line, sizeof line, "%s\t%ld\t%llu\t%lld\t%lld\t%s\t%s\n", kind, syscall(SYS_gettid),
                          (unsigned long long)inode, first, second, path, other);
    int fd = open_log();
    if (fd >= 0 && length < (int)sizeof line && syscall(SYS_write, fd, line, length) != length) abort();
    errno = error;
}

/* Files */

static int is_below(const char *path) {
    const char *root = folder();
    size_t length = root ? strlen(root) : 0;
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int path_of_fd(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

/* Say whether a path lies below the folder, and make it absolute, without "." and "..". */
static int resolve(int at, const char *path, char *out) {
    char whole[2 * PATH_MAX + 2], base[PATH_MAX] = "";
    int error = errno;
    if (!folder() || !path) return 0;
    if (path[0] != '/' && !(at == AT_FDCWD ? getcwd(base, sizeof base) != NULL : path_of_fd(at, base)))
        return 0;
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    errno = error;
    if (strlen(whole) >= PATH_MAX) return 0;
    char *rest = NULL, *end = out;
    *out = 0;
    for (char *part = strtok_r(whole, "/", &rest); part; part = strtok_r(NULL, "/", &rest)) {
        if (!strcmp(part, ".")) continue;
        if (!strcmp(part, "..")) {
            end = strrchr(out, '/') ? strrchr(out, '/') : out;
            *end = 0;
            continue;
        }
        end += sprintf(end, "/%s", part);
    }
    return is_below(out);
}

static int is_watched(int fd, mode_t kind, struct stat *status, char *path) {
    int error = errno;
    int found = folder() && !fstat(fd, status) && ((status->st_mode & S_IFMT) == kind || !kind) &&
                path_of_fd(fd, path) && is_below(path);
    errno = error;
    return found;
}

static int opened(int fd, int at, const char *name, int flags) {
    char path[PATH_MAX];
    struct stat status;
    if (fd >= 0 && flags & (O_CREAT | O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE &&
        resolve(at, name, path) && !fstat(fd, &status))
        record("open", status.st_ino, !!(flags & O_TRUNC), 0, path, "");
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags) REAL(name); \
        return opened(real(path, flags, mode), AT_FDCWD, path, flags); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        MODE(flags) REAL(name); \
        return opened(real(at, path, flags, mode), at, path, flags); \
    }
#define CREAT(name) \
    int name(const char *path, mode_t mode) { \
        REAL(name); \
        return opened(real(path, mode), AT_FDCWD, path, O_CREAT | O_TRUNC); \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) CREAT(creat) CREAT(creat64)

static ssize_t wrote(int fd, off_t offset, ssize_t count) {
    char path[PATH_MAX];
    struct stat status;
    if (count > 0 && is_watched(fd, S_IFREG, &status, path)) {
        if (offset < 0) offset = lseek(fd, 0, SEEK_CUR) - count;
        record("write", status.st_ino, offset, count, path, "");
    }
    return count;
}

#define PWRITE(name, type, count_type) \
    ssize_t name(int fd, type data, count_type count, off_t offset) { \
        REAL(name); \
        return wrote(fd, offset, real(fd, data, count, offset)); \
    }
PWRITE(pwrite, const void *, size_t) PWRITE(pwrite64, const void *, size_t)
PWRITE(pwritev, const struct iovec *, int) PWRITE(pwritev64, const struct iovec *, int)

ssize_t writev(int fd, const struct iovec *data, int count) {
    REAL(writev);
    return wrote(fd, -1, real(fd, data, count));
}
#define SENDFILE(name) \
    ssize_t name(int out, int in, off_t *offset, size_t count) { \
        REAL(name); \
        return wrote(out, -1, real(out, in, offset, count)); \
    }
SENDFILE(sendfile) SENDFILE(sendfile64)

ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t count, unsigned flags) {
    REAL(copy_file_range);
    off_t offset = to ? *to : -1;
    return wrote(out, offset, real(in, from, out, to, count, flags));
}

static int on_fd(int fd, int (*call)(int, off_t), off_t size) {
    char path[PATH_MAX];
    struct stat status;
    int result = call(fd, size);
    if (!result && is_watched(fd, S_IFREG, &status, path))
        record("truncate", status.st_ino, status.st_size, 0, path, "");
    return result;
}
int ftruncate(int fd, off_t size) { REAL(ftruncate); return on_fd(fd, real, size); }
int ftruncate64(int fd, off_t size) { REAL(ftruncate64); return on_fd(fd, real, size); }

static int forced(int fd, int (*call)(int)) {
    char path[PATH_MAX];
    struct stat status;
    int watched = is_watched(fd, 0, &status, path);
    if (watched) record("begin", status.st_ino, 0, 0, path, "");
    int result = call(fd);
    if (watched && !result) record("force", status.st_ino, 0, 0, path, "");
    return result;
}
int fsync(int fd) { REAL(fsync); return forced(fd, real); }
int fdatasync(int fd) { REAL(fdatasync); return forced(fd, real); }

/* Names */

static int named(int result, const char *kind, int at, const char *old, int new_at, const char *new) {
    char path[PATH_MAX] = "", other[PATH_MAX] = "";
    struct stat status = {0};
    int below = !result && resolve(at, old, path);
    int new_below = !result && new && resolve(new_at, new, other);
    if (!below && !new_below) return result;
    int error = errno;
    if (new) lstat(other, &status);
    record(kind, status.st_ino, 0, 0, path, other);
    const char *last = getenv("PGDELTA_POWER_KILL");
    size_t length = last ? strlen(last) : 0, of = strlen(other);
    if (length && !strcmp(kind, "link") && of >= length && !strcmp(other + of - length, last))
        kill(0, SIGKILL);
    errno = error;
    return result;
}
#define ONE(name, kind, parameters, arguments, at, path) \
    int name parameters { REAL(name); return named(real arguments, kind, at, path, 0, NULL); }
#define TWO(name, kind, parameters, arguments, at, path, to, other) \
    int name parameters { REAL(name); return named(real arguments, kind, at, path, to, other); }
ONE(mkdir, "mkdir", (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
ONE(mkdirat, "mkdir", (int at, const char *path, mode_t mode), (at, path, mode), at, path)
ONE(rmdir, "remove", (const char *path), (path), AT_FDCWD, path)
ONE(unlink, "remove", (const char *path), (path), AT_FDCWD, path)
ONE(unlinkat, "remove", (int at, const char *path, int flags), (at, path, flags), at, path)
ONE(remove, "remove", (const char *path), (path), AT_FDCWD, path)
TWO(rename, "rename", (const char *path, const char *new), (path, new), AT_FDCWD, path, AT_FDCWD, new)
TWO(renameat, "rename", (int at, const char *path, int to, const char *new), (at, path, to, new),
    at, path, to, new)
TWO(renameat2, "rename", (int at, const char *path, int to, const char *new, unsigned flags),
    (at, path, to, new, flags), at, path, to, new)
TWO(link, "link", (const char *path, const char *new), (path, new), AT_FDCWD, path, AT_FDCWD, new)
TWO(linkat, "link", (int at, const char *path, int to, const char *new, int flags),
    (at, path, to, new, flags), at, path, to, new)

/* PostgreSQL */

static const uint8_t ADVANCE[] = "pg_replication_slot_advance(";

static uint64_t number(const uint8_t *bytes, int count) {
    uint64_t value = 0;
    while (count--) value = value << 8 | *bytes++;
    return value;
}

/* The SQL route: the LSN is a parameter, a text behind the query's. */
static void advanced(const uint8_t *data, size_t size) {
    const uint8_t *at = memmem(data, size, ADVANCE, sizeof ADVANCE - 1);
    for (const uint8_t *each = at; each && each + 1 < data + size; each++) {
        const uint8_t *start = each;
        if (*each != '/' || !isxdigit(each[1])) continue;
        while (start > at && isxdigit(start[-1])) start--;
        if (start == each) continue;
        uint64_t high = strtoull((const char *)start, NULL, 16), low = 0;
        for (each++; each < data + size && isxdigit(*each); each++)
            low = low << 4 | (uint64_t)(isdigit(*each) ? *each - '0' : (*each | 32) - 'a' + 10);
        record("advance", 0, (long long)(high << 32 | low), 0, "", "");
    }
}

/* The walsender route: standby status updates, 'd' with a length of 38 and 'r', the flushed LSN second. */
static void reported(int fd, const void *bytes, size_t size) {
    const uint8_t *data = bytes, *end = data + size;
    struct stat status;
    int error = errno;
    if (size >= 39 && folder() && !fstat(fd, &status) && S_ISSOCK(status.st_mode)) {
        for (; end - data >= 39 && data[0] == 'd' && number(data + 1, 4) == 38 && data[5] == 'r'; data += 39)
            record("flush", 0, (long long)number(data + 14, 8), 0, "", "");
        advanced(bytes, size);
    }
    errno = error;
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    reported(fd, data, size);
    return wrote(fd, -1, real(fd, data, size));
}
ssize_t send(int fd, const void *data, size_t size, int flags) {
    REAL(send);
    reported(fd, data, size);
    return real(fd, data, size, flags);
}
ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to,
               socklen_t length) {
    REAL(sendto);
    reported(fd, data, size);
    return real(fd, data, size, flags, to, length);
}
