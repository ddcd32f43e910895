/* A disk that fails: preloaded (LD_PRELOAD), this library makes writes or reads fail with an error of choice.

FAILING_FOLDER  only regular files below this folder are concerned
FAILING_AFTER   this many bytes can be written by each process, all files together; the write that passes the limit is
                cut there, and the next one fails. Nothing fails while the variable is missing
FAILING_ERRNO   the number of the error
FAILING_CALLS   "write": all calls that write, fsync and close; "close": writing succeeds, fsync and close fail afterwards, as
                on file servers that learn of the quota late; "read": only calls that read, after so many bytes read
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long long written;

long long failing_writes_written(void) { return written; }

static int concerned(int fd)
{
    const char *folder = getenv("FAILING_FOLDER");
    char link[64], path[4096];
    struct stat status;
    if (!folder || !getenv("FAILING_AFTER") || fstat(fd, &status) || !S_ISREG(status.st_mode))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int mode(const char *name)
{
    const char *calls = getenv("FAILING_CALLS");
    return calls && strcmp(calls, name) == 0;
}

static int late(void) { return mode("close"); }

static long long left(void) { return atoll(getenv("FAILING_AFTER")) - written; }

static int failure(void)
{
    errno = atoi(getenv("FAILING_ERRNO"));
    return -1;
}

/* How many of so many bytes may be written, -1 for a failure. */
static ssize_t allowed(int fd, size_t count)
{
    if (!concerned(fd) || late() || mode("read") || count == 0)
        return count;
    if (left() <= 0)
        return failure();
    return (long long)count < left() ? (ssize_t)count : left();
}

static ssize_t counted(int fd, ssize_t count)
{
    if (count > 0 && concerned(fd) && !mode("read"))
        written += count;
    return count;
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) \
        real = dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t count)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    ssize_t n = allowed(fd, count);
    return n < 0 ? n : counted(fd, real(fd, data, n));
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at)
{
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    ssize_t n = allowed(fd, count);
    return n < 0 ? n : counted(fd, real(fd, data, n, at));
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at) { return pwrite64(fd, data, count, at); }

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    if (!concerned(fd))
        return real(fd, parts, count);
    return count ? write(fd, parts[0].iov_base, parts[0].iov_len) : 0;
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at)
{
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
    if (!concerned(fd))
        return real(fd, parts, count, at);
    return count ? pwrite64(fd, parts[0].iov_base, parts[0].iov_len, at) : 0;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return pwritev64(fd, parts, count, at); }

static int over(int fd) { return concerned(fd) && !mode("read") && left() <= 0; }

/* Whether a read must fail: its process has read more than FAILING_AFTER bytes before. */
static int broken(int fd)
{
    return mode("read") && concerned(fd) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && left() <= 0;
}

static ssize_t seen(int fd, ssize_t count)
{
    if (count > 0 && mode("read") && concerned(fd))
        written += count;
    return count;
}

ssize_t read(int fd, void *data, size_t count)
{
    REAL(ssize_t, "read", int, void *, size_t);
    return broken(fd) ? failure() : seen(fd, real(fd, data, count));
}

ssize_t pread64(int fd, void *data, size_t count, off64_t at)
{
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
    return broken(fd) ? failure() : seen(fd, real(fd, data, count, at));
}

ssize_t pread(int fd, void *data, size_t count, off_t at) { return pread64(fd, data, count, at); }

ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at)
{
    REAL(ssize_t, "preadv64", int, const struct iovec *, int, off64_t);
    return broken(fd) ? failure() : seen(fd, real(fd, parts, count, at));
}

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) { return preadv64(fd, parts, count, at); }

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags)
{
    REAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off64_t, int);
    return broken(fd) ? failure() : seen(fd, real(fd, parts, count, at, flags));
}

int ftruncate64(int fd, off64_t length)
{
    REAL(int, "ftruncate64", int, off64_t);
    return length > 0 && !late() && over(fd) ? failure() : real(fd, length);
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int fsync(int fd)
{
    REAL(int, "fsync", int);
    return over(fd) ? failure() : real(fd);
}

int fdatasync(int fd) { return fsync(fd); }

int close(int fd)
{
    REAL(int, "close", int);
    int fails = over(fd) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    int result = real(fd);
    return fails ? failure() : result;
}
