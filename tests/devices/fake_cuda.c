/* A libcuda.so.1 that has no GPU and answers from a scenario: a text file named by FAKE_CUDA_SCENARIO.
 *
 * Lines are "key = value"; "uuid" may come several times, once for each device of the machine.
 *
 *   init = 803 (what cuInit returns)       version = 12020 (what cuDriverGetVersion tells)
 *   count = 100 (what cuDeviceGetCount returns)
 *   uuid = GPU-11111111-2222-3333-4444-555555555555 (or MIG-…)
 *   crash = 1 (cuInit ends the process by SIGSEGV)     hang = 1 (cuInit never returns)    prints = text (on stdout)
 *   memory = 80000000000 (bytes of each device)
 *   bad = GPU-11111111:999 (a device, by the beginning of its UUID, and what all work on it returns from now on)
 *
 * CUDA_VISIBLE_DEVICES is honoured as the real one does it: numbers and beginnings of UUIDs; the first that names no
 * device ends the list, and a device named twice leaves none. A process sees one MIG device at most, and no GPU beside
 * it: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-names.html. Compiled with -DWITHOUT_UUID_V2 it
 * lacks what drivers before CUDA 11.4 lack.
 *
 * A process can retain a context, take memory and launch kernels, which compute nothing and keep the device busy for
 * 20 ms. Other processes, and fake_nvml.c, see its contexts as files UUID.PID in the folder FAKE_GPU_USES: the bytes
 * that it holds there, and until when the device is busy for it. An error of a kernel stays until the process ends.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, UNINITIALISED = 3, NO_DEVICE = 100, BAD_DEVICE = 101, NO_CONTEXT = 201 };
enum { DEVICES = 64, TEXT = 160, BLOCKS = 64 };

static char uuids[DEVICES][TEXT];
static int visible[DEVICES], here, seen, initialised;

static char *trimmed(char *text) {
    text += strspn(text, " \t\r\n");
    for (size_t length = strlen(text); length && strchr(" \t\r\n", text[length - 1]);) text[--length] = 0;
    return text;
}

/* The value of a key; NULL if the scenario does not have it. Every "uuid" is kept on the way. */
static const char *value_of(const char *key) {
    static char found[TEXT];
    const char *path = getenv("FAKE_CUDA_SCENARIO"), *result = NULL;
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[TEXT];
    here = 0;
    while (file && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '='), *name, *value;
        if (!equals) continue;
        *equals = 0;
        name = trimmed(line);
        value = trimmed(equals + 1);
        if (!strcmp(name, "uuid") && here < DEVICES) snprintf(uuids[here++], TEXT, "%s", value);
        if (!strcmp(name, key)) {
            snprintf(found, TEXT, "%s", value);
            result = found;
        }
    }
    if (file) fclose(file);
    return result;
}

static int number_of(const char *key, int otherwise) {
    const char *value = value_of(key);
    return value ? atoi(value) : otherwise;
}

/* The device that one item of CUDA_VISIBLE_DEVICES names; -1 for none. */
static int named(const char *item) {
    int found = -1;
    if (*item >= '0' && *item <= '9') return atoi(item) < here ? atoi(item) : -1;
    for (int i = 0; *item && i < here; i++)
        if (!strncasecmp(uuids[i], item, strlen(item))) {
            if (found >= 0) return -1;
            found = i;
        }
    return found;
}

static int is_slice(int device) { return !strncmp(uuids[device], "MIG-", 4); }

static void look(void) {
    const char *listed = getenv("CUDA_VISIBLE_DEVICES");
    char items[4096], *rest = items, *item;
    seen = 0;
    if (!listed) {
        for (; seen < here && !(seen && (is_slice(seen) || is_slice(0))); seen++) visible[seen] = seen;
        return;
    }
    snprintf(items, sizeof items, "%s", listed);
    while ((item = strsep(&rest, ","))) {
        int device = named(trimmed(item));
        if (device < 0 || (seen && (is_slice(device) || is_slice(visible[0])))) return;
        for (int i = 0; i < seen; i++)
            if (visible[i] == device) {
                seen = 0;
                return;
            }
        visible[seen++] = device;
    }
}

int cuDriverGetVersion(int *version) {
    *version = number_of("version", 12020);
    return OK;
}

int cuInit(unsigned flags) {
    const char *said = value_of("prints");
    int failed;
    if (flags) return INVALID;
    if (said) puts(said);
    if (number_of("crash", 0)) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    while (number_of("hang", 0)) sleep(1);
    failed = number_of("init", OK);
    look();
    if (failed) return failed;
    if (!seen) return NO_DEVICE;
    initialised = 1;
    return OK;
}

int cuDeviceGetCount(int *count) {
    if (!initialised) return UNINITIALISED;
    *count = seen;
    return number_of("count", OK);
}

int cuDeviceGet(int *device, int ordinal) {
    if (!initialised) return UNINITIALISED;
    if (ordinal < 0 || ordinal >= seen) return BAD_DEVICE;
    *device = ordinal;
    return OK;
}

static int uuid(unsigned char into[16], int device) {
    const char *text;
    int digits = 0;
    if (device < 0 || device >= seen) return BAD_DEVICE;
    text = strchr(uuids[visible[device]], '-');
    memset(into, 0, 16);
    for (text = text ? text : ""; *text && digits < 32; text++) {
        const char *digit = strchr("0123456789abcdef", *text | 32);
        if (*text == '-' || !digit) continue;
        into[digits / 2] = (unsigned char)(into[digits / 2] << 4 | (digit - "0123456789abcdef"));
        digits++;
    }
    return OK;
}
int cuDeviceGetUuid(unsigned char into[16], int device) { return uuid(into, device); }
#ifndef WITHOUT_UUID_V2
int cuDeviceGetUuid_v2(unsigned char into[16], int device) { return uuid(into, device); }
#endif

/* Work */

static int context = -1, broken; /* the device of the current context, as the process counts; what a kernel failed with */
static unsigned long long held[DEVICES], blocks[BLOCKS];
static long long busy_until[DEVICES];

static long long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return at.tv_sec * 1000LL + at.tv_nsec / 1000000;
}

static void tell(int device) {
    const char *folder = getenv("FAKE_GPU_USES");
    char name[512], made[512];
    FILE *file;
    if (!folder) return;
    snprintf(name, sizeof name, "%s/%s.%d", folder, uuids[visible[device]], (int)getpid());
    snprintf(made, sizeof made, "%s/new.%d", folder, (int)getpid());
    if (!(file = fopen(made, "w"))) return;
    fprintf(file, "%llu %lld\n", held[device], busy_until[device]);
    fclose(file);
    rename(made, name);
}

/* The bytes that living processes hold of a device. */
static unsigned long long used(int device) {
    const char *path = getenv("FAKE_GPU_USES"), *uuid = uuids[visible[device]];
    DIR *folder = path ? opendir(path) : NULL;
    struct dirent *entry;
    unsigned long long sum = 0, one;
    while (folder && (entry = readdir(folder))) {
        char name[512];
        FILE *file;
        size_t length = strlen(uuid);
        if (strncmp(entry->d_name, uuid, length) || entry->d_name[length] != '.') continue;
        if (kill(atoi(entry->d_name + length + 1), 0)) continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (!(file = fopen(name, "r"))) continue;
        if (fscanf(file, "%llu", &one) == 1) sum += one;
        fclose(file);
    }
    if (folder) closedir(folder);
    return sum;
}

static unsigned long long capacity(void) {
    const char *value = value_of("memory");
    return value ? strtoull(value, NULL, 10) : 80000000000ULL;
}

/* What any call does with the current context: fail as it has, or as the device does now. */
static int working(void) {
    const char *bad = value_of("bad"), *colon = bad ? strchr(bad, ':') : NULL;
    if (context < 0) return NO_CONTEXT;
    if (colon && !strncmp(uuids[visible[context]], bad, (size_t)(colon - bad))) broken = atoi(colon + 1);
    return broken;
}

int cuDevicePrimaryCtxRetain(void **made, int device) {
    if (!initialised) return UNINITIALISED;
    if (device < 0 || device >= seen) return BAD_DEVICE;
    if (!held[device]) held[device] = 500000000; /* what the driver keeps for a context: 300 to 600 MB */
    if (used(device) + held[device] > capacity()) return held[device] = 0, OUT_OF_MEMORY;
    tell(device);
    *made = (void *)(long)(device + 1);
    return OK;
}

int cuCtxSetCurrent(void *of) {
    context = (int)(long)of - 1;
    return OK;
}

int cuMemGetInfo_v2(size_t *unused, size_t *total) {
    int failed = working();
    if (failed) return failed;
    *total = capacity();
    *unused = *total - used(context);
    return OK;
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    int failed = working();
    if (failed) return failed;
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i]) continue;
        if (used(context) + bytes > capacity()) return OUT_OF_MEMORY;
        blocks[i] = bytes;
        held[context] += bytes;
        tell(context);
        *address = 0x7f0000000000ULL + (unsigned long long)i;
        return OK;
    }
    return OUT_OF_MEMORY;
}

int cuMemFree_v2(unsigned long long address) {
    unsigned long long block = address - 0x7f0000000000ULL;
    int failed = working();
    if (failed) return failed;
    if (block >= BLOCKS || !blocks[block]) return INVALID;
    held[context] -= blocks[block];
    blocks[block] = 0;
    tell(context);
    return OK;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    int failed = working();
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
    (void)parameters, (void)extra;
    if (failed) return failed;
    if (busy_until[context] < now()) busy_until[context] = now();
    busy_until[context] += 20;
    tell(context);
    return OK;
}

int cuCtxSynchronize(void) {
    while (context >= 0 && busy_until[context] > now()) usleep(1000);
    return working();
}

int cuGetErrorString(int error, const char **text) {
    switch (error) {
    case OK: *text = "no error"; return OK;
    case OUT_OF_MEMORY: *text = "out of memory"; return OK;
    case NO_DEVICE: *text = "no CUDA-capable device is detected"; return OK;
    case BAD_DEVICE: *text = "invalid device ordinal"; return OK;
    case 214: *text = "uncorrectable ECC error encountered"; return OK;
    case 719: *text = "unspecified launch failure"; return OK;
    case 999: *text = "unknown error"; return OK;
    default: *text = NULL; return INVALID;
    }
}
