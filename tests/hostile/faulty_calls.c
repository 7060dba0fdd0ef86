/* Reads, writes and syncs of one directory's files that transfer fewer bytes than asked for, are interrupted, or fail.

   POSIX allows read and write to transfer fewer bytes at any time, and network filesystems and FUSE do. strace can inject an error,
   but not a short transfer. Loaded by LD_PRELOAD; the environment chooses the faults:

   FAULTY_DIRECTORY   files below it are affected, by the path that /proc/self/fd gives
   FAULTY_SEED        of the lengths and of the interrupted calls
   FAULTY_SHORT       r, w or rw: which calls transfer a part of their bytes: short_length
   FAULTY_INTERRUPTS  of 1,000 calls that end with EINTR
   FAULTY_ERROR       errno of the calls of kind FAULTY_CALL (r, w or s for sync), from number FAULTY_FIRST to FAULTY_LAST
   FAULTY_COUNTS      a file of two numbers of 8 bytes, which all processes share: calls, faults

   A process whose environment has no FAULTY_DIRECTORY looks for it again at each call: a copy of a nursery gets it later.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *directory;
static int short_reads, short_writes, interrupts, error;
static char failing_kind;
static long first_failing, last_failing;
static uint64_t seed;
static atomic_long uncounted[2], of_failing_kind;
static atomic_long *calls = &uncounted[0], *faults = &uncounted[1];
static __thread uint64_t random_state;

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static void share_counts(const char *path) {
    size_t size = 2 * sizeof *calls;
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, size)) abort();
    atomic_long *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) abort();
    close(file);
    calls = &shared[0];
    faults = &shared[1];
}

__attribute__((constructor)) static void begin(void) {
    const char *shorts = getenv("FAULTY_SHORT"), *kind = getenv("FAULTY_CALL"), *counts_path = getenv("FAULTY_COUNTS");
    if (!getenv("FAULTY_DIRECTORY")) return;
    short_reads = shorts && strchr(shorts, 'r');
    short_writes = shorts && strchr(shorts, 'w');
    interrupts = (int)number("FAULTY_INTERRUPTS", 0);
    error = (int)number("FAULTY_ERROR", 0);
    failing_kind = kind ? kind[0] : 0;
    first_failing = number("FAULTY_FIRST", 1);
    last_failing = number("FAULTY_LAST", first_failing);
    seed = (uint64_t)number("FAULTY_SEED", 0);
    if (counts_path) share_counts(counts_path);
    directory = strdup(getenv("FAULTY_DIRECTORY"));
}

/* xorshift, one state a thread. */
static uint64_t next_random(void) {
    if (!random_state) random_state = (seed + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)getpid() << 20 ^ (uint64_t)atomic_load(calls);
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int is_affected(int file) {
    char link[40], path[4096];
    if (!directory) begin();
    if (!directory) return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length <= 0) return 0;
    path[length] = 0;
    size_t prefix = strlen(directory);
    return strncmp(path, directory, prefix) == 0 && path[prefix] == '/';
}

/* From one byte to 64 KiB, with each power of two as likely: a file of 100 bytes is cut as one of 100 MB is. */
static size_t short_length(size_t length) {
    size_t most = (size_t)1 << next_random() % 17;
    return next_random() % (most < length ? most : length) + 1;
}

/* Whether the call fails, with errno set; else *length is what the call may transfer. */
static int fault(int file, char kind, size_t *length) {
    if (!is_affected(file)) return 0;
    atomic_fetch_add(calls, 1);
    if (error && kind == failing_kind) {
        long place = atomic_fetch_add(&of_failing_kind, 1) + 1;
        if (first_failing <= place && place <= last_failing) {
            atomic_fetch_add(faults, 1);
            errno = error;
            return 1;
        }
    }
    if (!length) return 0;
    if (interrupts && (int)(next_random() % 1000) < interrupts) {
        atomic_fetch_add(faults, 1);
        errno = EINTR;
        return 1;
    }
    if (*length > 1 && ((kind == 'r' && short_reads) || (kind == 'w' && short_writes))) {
        atomic_fetch_add(faults, 1);
        *length = short_length(*length);
    }
    return 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t read(int file, void *bytes, size_t length) {
    REAL(read);
    return fault(file, 'r', &length) ? -1 : real(file, bytes, length);
}

ssize_t write(int file, const void *bytes, size_t length) {
    REAL(write);
    return fault(file, 'w', &length) ? -1 : real(file, bytes, length);
}

ssize_t pread(int file, void *bytes, size_t length, off_t offset) {
    REAL(pread);
    return fault(file, 'r', &length) ? -1 : real(file, bytes, length, offset);
}

ssize_t pread64(int file, void *bytes, size_t length, off64_t offset) {
    REAL(pread64);
    return fault(file, 'r', &length) ? -1 : real(file, bytes, length, offset);
}

ssize_t pwrite(int file, const void *bytes, size_t length, off_t offset) {
    REAL(pwrite);
    return fault(file, 'w', &length) ? -1 : real(file, bytes, length, offset);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t offset) {
    REAL(pwrite64);
    return fault(file, 'w', &length) ? -1 : real(file, bytes, length, offset);
}

/* What glibc's headers call instead, where a program was compiled with _FORTIFY_SOURCE. */
ssize_t __read_chk(int file, void *bytes, size_t length, size_t room) {
    if (length > room) abort();
    return read(file, bytes, length);
}

ssize_t __pread_chk(int file, void *bytes, size_t length, off_t offset, size_t room) {
    if (length > room) abort();
    return pread(file, bytes, length, offset);
}

ssize_t __pread64_chk(int file, void *bytes, size_t length, off64_t offset, size_t room) {
    if (length > room) abort();
    return pread64(file, bytes, length, offset);
}

/* Of several buffers, a short transfer has a part of the first. */
#define VECTORED(name, single, kind, parameters, arguments, ...)                                                                \
    ssize_t name parameters {                                                                                                   \
        REAL(name);                                                                                                             \
        int is_short = kind == 'r' ? short_reads : short_writes;                                                                \
        if (is_short && count > 0 && buffers[0].iov_len) return single(file, buffers[0].iov_base, buffers[0].iov_len __VA_ARGS__); \
        return fault(file, kind, NULL) ? -1 : real arguments;                                                                   \
    }
VECTORED(readv, read, 'r', (int file, const struct iovec *buffers, int count), (file, buffers, count), )
VECTORED(writev, write, 'w', (int file, const struct iovec *buffers, int count), (file, buffers, count), )
#define AT , offset
VECTORED(preadv, pread, 'r', (int file, const struct iovec *buffers, int count, off_t offset), (file, buffers, count, offset), AT)
VECTORED(pwritev, pwrite, 'w', (int file, const struct iovec *buffers, int count, off_t offset), (file, buffers, count, offset), AT)
VECTORED(preadv64, pread64, 'r', (int file, const struct iovec *buffers, int count, off64_t offset), (file, buffers, count, offset), AT)
VECTORED(pwritev64, pwrite64, 'w', (int file, const struct iovec *buffers, int count, off64_t offset), (file, buffers, count, offset), AT)

ssize_t copy_file_range(int source, off64_t *source_offset, int file, off64_t *offset, size_t length, unsigned flags) {
    REAL(copy_file_range);
    return fault(file, 'w', &length) ? -1 : real(source, source_offset, file, offset, length, flags);
}

ssize_t sendfile(int file, int source, off_t *offset, size_t length) {
    REAL(sendfile);
    return fault(file, 'w', &length) ? -1 : real(file, source, offset, length);
}

ssize_t sendfile64(int file, int source, off64_t *offset, size_t length) {
    REAL(sendfile64);
    return fault(file, 'w', &length) ? -1 : real(file, source, offset, length);
}

int fsync(int file) {
    REAL(fsync);
    return fault(file, 's', NULL) ? -1 : real(file);
}

int fdatasync(int file) {
    REAL(fdatasync);
    return fault(file, 's', NULL) ? -1 : real(file);
}
