/* A libnvidia-ml.so.1 that has no GPU and answers from a scenario: a text file named by FAKE_NVML_SCENARIO.
 *
 * Lines are "key = value"; a line "[gpu]" begins a GPU and "[slice]" a MIG slice of the GPU above it; what stands before
 * the first is the system's. A question for which the scenario has no answer is "not supported", as with real drivers.
 * The file is read again whenever it has changed, so that a GPU can be lost, or cut into slices, while somebody looks;
 * a handle stays the GPU's as long as what stands before it is as long as it was.
 *
 *   system: driver = 535.104.05    cuda = 12020    init = 9 (what nvmlInit returns)    count = 999 (what the count does)
 *           fails_after = 12 (from then on every call is an unknown error)
 *   gpu:    name, uuid, memory (bytes), used (bytes), capability = 9.0, nvlink = 1,2 (indexes of GPUs), mig = 1,
 *           process = PID:BYTES (again for another; without bytes the driver does not tell them),
 *               PID may be STEP: then it stands in the file named by FAKE_NVML_STEP, and nobody is there without it,
 *           utilisation = 0,50,100 (a value for each time it is asked, then the last),
 *           mig_fails, count_fails, slice_fails = 999 (what the mode, the count, and numbers without a slice return),
 *           fails = 15 (every call), lost_after = 3 (calls that still work), handle = 15 (what finding it returns)
 *           power (mW), temperature, clock, reasons (bits): each a list like utilisation,
 *           numa = 1 (the node whose CPUs are nearest),
 *           energy = 1000,500 (mJ at first, and how much more each time it is asked),
 *           pcie = RX,TX (KB/s), counters = RX,TX (bytes more each time it is asked),
 *           bursts = 0,90,0 (the driver's own samples, of which each asking finds three more),
 *           xid = 2:79 (at the second look for events, code 79), double_bit = 2 (the event of an ECC error, likewise)
 *           remap_pending, remap_failed, retire_pending = 1, ecc_errors = 3 (uncorrected, since the driver was loaded)
 *   slice:  name, uuid, memory, used, process, attributes = GPU_SLICES:COMPUTE_SLICES:MEGABYTES,
 *           of = 0 (the index of its GPU, for one that does not stand below it)
 *
 * With FAKE_GPU_USES, processes that have contexts of fake_cuda.c are listed with their memory, which is in use; and a
 * GPU whose scenario does not say how much it is used was used if a kernel of theirs ran within the last second. As with
 * the real one, neither a slice nor a GPU that is cut into slices tells that:
 * https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (nvmlDeviceGetUtilizationRates).
 *
 * Compiled with -DWITHOUT_P2P, -DWITHOUT_MIG, -DWITHOUT_PROCESSES_V3, -DWITHOUT_PROCESSES, -DWITHOUT_CUDA_V2,
 * -DWITHOUT_METERS, -DWITHOUT_NEW_REASONS or -DWITHOUT_INIT, it lacks the functions that an old driver lacks.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OK = 0, UNINITIALISED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, UNKNOWN = 999 };
enum { DEVICES = 64, FIELDS = 32, TEXT = 160 };

struct field { char key[32], value[TEXT]; };
struct section { struct field fields[FIELDS]; int count, parent, index, calls, asked, turns[8], followed, told; };

static struct section sections[1 + DEVICES]; /* the first is the system's */
static int section_count, initialised, calls;
static struct stat last_read;

static void trim(char *text) {
    char *first = text + strspn(text, " \t\r\n");
    memmove(text, first, strlen(first) + 1);
    for (size_t length = strlen(text); length && strchr(" \t\r\n", text[length - 1]);) text[--length] = 0;
}

static struct section *child(int parent, int wanted);
static const char *get(const struct section *of, const char *key);

static void read_scenario(void) {
    const char *path = getenv("FAKE_NVML_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[TEXT];
    int gpus = 0, last_gpu = 0;
    if (file) fstat(fileno(file), &last_read);
    for (int i = 0; i <= DEVICES; i++) sections[i].count = 0;
    section_count = 1;
    while (file && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        trim(line);
        if (line[0] == '[' && section_count <= DEVICES) {
            struct section *made = &sections[section_count];
            made->parent = strcmp(line, "[slice]") ? 0 : last_gpu;
            made->index = made->parent ? sections[last_gpu].index : gpus++;
            if (!made->parent) last_gpu = section_count;
            section_count++;
        } else if (equals) {
            struct section *into = &sections[section_count - 1];
            if (into->count == FIELDS) continue;
            struct field *made = &into->fields[into->count++];
            equals = strchr(line, '='); /* it has moved if there were blanks before the key */
            *equals = 0;
            snprintf(made->key, sizeof made->key, "%.31s", line);
            snprintf(made->value, sizeof made->value, "%s", equals + 1);
            trim(made->key);
            trim(made->value);
        }
    }
    if (file) fclose(file);
    for (int i = 1; i < section_count; i++) {
        const char *whose = get(&sections[i], "of");
        struct section *gpu = whose ? child(0, atoi(whose)) : NULL;
        if (!gpu) continue;
        sections[i].parent = (int)(gpu - sections);
        sections[i].index = gpu->index;
    }
}

static void read_again_if_changed(void) {
    const char *path = getenv("FAKE_NVML_SCENARIO");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (now.st_ino != last_read.st_ino || now.st_size != last_read.st_size || now.st_mtim.tv_sec != last_read.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != last_read.st_mtim.tv_nsec)
        read_scenario();
}

/* The value of a key, the nth of several; NULL if there is none. */
static const char *nth(const struct section *of, const char *key, int number) {
    for (int i = 0; i < of->count; i++)
        if (!strcmp(of->fields[i].key, key) && number-- == 0) return of->fields[i].value;
    return NULL;
}

static const char *get(const struct section *of, const char *key) { return nth(of, key, 0); }
static int number(const struct section *of, const char *key) {
    const char *value = get(of, key);
    return value ? atoi(value) : 0;
}

/* What any call does first: count itself, and fail if it is time. */
static int called(void) {
    const char *after;
    if (!initialised) return UNINITIALISED;
    read_again_if_changed();
    after = get(&sections[0], "fails_after");
    return after && calls++ >= atoi(after) ? UNKNOWN : OK;
}

static int device(void *handle, struct section **found) {
    int failed = called();
    struct section *of = handle;
    if (failed) return failed;
    if (of <= sections || of >= sections + section_count) return INVALID;
    *found = of;
    if (get(of, "fails")) return number(of, "fails");
    return get(of, "lost_after") && of->calls++ >= number(of, "lost_after") ? LOST : OK;
}

#define DEVICE                              \
    struct section *of = NULL;              \
    int failed = device(handle, &of);       \
    if (failed) return failed;

static int text(const struct section *of, const char *key, char *into, unsigned size) {
    const char *value = get(of, key);
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) >= size) return TOO_SMALL;
    strcpy(into, value);
    return OK;
}

/* The nth GPU (parent 0), or the nth slice of a GPU. */
static struct section *child(int parent, int wanted) {
    for (int i = 1; i < section_count; i++)
        if (sections[i].parent == parent && wanted-- == 0) return &sections[i];
    return NULL;
}

#ifndef WITHOUT_INIT
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    memset(sections, 0, sizeof sections);
    read_scenario();
    calls = 0;
    initialised += !number(&sections[0], "init"); /* counted, as the real one does */
    return number(&sections[0], "init");
}
#endif
int nvmlShutdown(void) {
    int was = initialised;
    initialised -= was > 0;
    return was ? OK : UNINITIALISED;
}
const char *nvmlErrorString(int error) { return error == LOST ? "GPU is lost" : "Unknown Error"; }

int nvmlSystemGetDriverVersion(char *into, unsigned size) {
    int failed = called();
    return failed ? failed : text(&sections[0], "driver", into, size);
}

static int cuda_version(int *version) {
    int failed = called();
    if (failed) return failed;
    *version = number(&sections[0], "cuda");
    return get(&sections[0], "cuda") ? OK : NOT_SUPPORTED;
}
#ifndef WITHOUT_CUDA_V2
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return cuda_version(version); }
#endif
int nvmlSystemGetCudaDriverVersion(int *version) { return cuda_version(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int failed = called();
    for (*count = 0; child(0, (int)*count);) ++*count;
    return failed ? failed : number(&sections[0], "count");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int failed = called();
    struct section *found = child(0, (int)index);
    if (failed) return failed;
    if (!found) return INVALID;
    *handle = found;
    return number(found, "handle");
}

int nvmlDeviceGetName(void *handle, char *into, unsigned size) { DEVICE return text(of, "name", into, size); }
int nvmlDeviceGetUUID(void *handle, char *into, unsigned size) { DEVICE return text(of, "uuid", into, size); }

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    DEVICE
    const char *value = get(of, "capability");
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

struct use { unsigned pid; uint64_t memory; long long busy_until; };

/* The contexts of fake_cuda.c on a device: files UUID.PID in the folder FAKE_GPU_USES. A context ends with its process. */
static unsigned uses_of(const struct section *of, struct use *into, unsigned room) {
    const char *path = getenv("FAKE_GPU_USES"), *uuid = get(of, "uuid");
    DIR *folder = path && uuid ? opendir(path) : NULL;
    struct dirent *entry;
    unsigned found = 0;
    while (folder && found < room && (entry = readdir(folder))) {
        char name[512];
        struct use one = {0, 0, 0};
        FILE *file;
        int lives;
        size_t length = strlen(uuid);
        if (strncmp(entry->d_name, uuid, length) || entry->d_name[length] != '.') continue;
        one.pid = (unsigned)atoi(entry->d_name + length + 1);
        snprintf(name, sizeof name, "/proc/%u/cmdline", one.pid);
        lives = (file = fopen(name, "r")) && fgetc(file) != EOF; /* a zombie has none */
        if (file) fclose(file);
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (!lives || !(file = fopen(name, "r"))) continue;
        if (fscanf(file, "%lu %lld", &one.memory, &one.busy_until) == 2) into[found++] = one;
        fclose(file);
    }
    if (folder) closedir(folder);
    return found;
}

int nvmlDeviceGetMemoryInfo(void *handle, uint64_t *into) { /* total, free, used */
    DEVICE
    const char *total = get(of, "memory"), *used = get(of, "used");
    struct use uses[DEVICES];
    if (!total) return NOT_SUPPORTED;
    into[0] = strtoull(total, NULL, 10);
    into[2] = used ? strtoull(used, NULL, 10) : 0;
    for (unsigned i = uses_of(of, uses, DEVICES); i > 0; i--) into[2] += uses[i - 1].memory;
    into[1] = into[0] - into[2];
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *into) { /* GPU, memory */
    DEVICE
    const char *value = get(of, "utilisation"), *comma;
    struct use uses[DEVICES];
    struct timespec now;
    if (!value && (!getenv("FAKE_GPU_USES") || of->parent || number(of, "mig"))) return NOT_SUPPORTED;
    if (!value) {
        clock_gettime(CLOCK_REALTIME, &now);
        into[0] = 0;
        for (unsigned i = uses_of(of, uses, DEVICES); i > 0; i--)
            if (uses[i - 1].busy_until + 1000 > now.tv_sec * 1000LL + now.tv_nsec / 1000000) into[0] = 97;
        into[1] = into[0] / 2;
        return OK;
    }
    for (int i = 0; i < of->asked && (comma = strchr(value, ',')); i++) value = comma + 1;
    of->asked++;
    into[0] = (unsigned)atoi(value);
    into[1] = into[0] / 2;
    return OK;
}

#ifndef WITHOUT_P2P
int nvmlDeviceGetP2PStatus(void *handle, void *peer, int capability, int *status) {
    DEVICE
    const struct section *other = peer;
    const char *value = get(of, "nvlink");
    char wanted[8], padded[TEXT + 4];
    snprintf(wanted, sizeof wanted, ",%d,", other->index);
    snprintf(padded, sizeof padded, ",%s,", value ? value : "");
    *status = capability == 2 && strstr(padded, wanted) ? 0 : 5; /* 2 = NVLink; 0 = ok, 5 = not supported */
    return OK;
}
#endif

int nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, unsigned long *into, unsigned scope) {
    DEVICE
    if (!get(of, "numa")) return NOT_SUPPORTED;
    if (!size || scope > 1) return INVALID;
    memset(into, 0, size * sizeof *into);
    into[0] = 1UL << number(of, "numa");
    return OK;
}

#ifndef WITHOUT_MIG
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    DEVICE
    *current = *pending = (unsigned)number(of, "mig");
    if (get(of, "mig_fails")) return number(of, "mig_fails");
    return get(of, "mig") ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    DEVICE
    *count = number(of, "mig") ? 7 : 0;
    return number(of, "count_fails");
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **found) {
    DEVICE
    *found = child((int)(of - sections), (int)index);
    return *found ? OK : get(of, "slice_fails") ? number(of, "slice_fails") : NOT_FOUND;
}
struct attributes { unsigned multiprocessors, engines[5], gpu_slices, compute_slices; uint64_t megabytes; };
int nvmlDeviceGetAttributes_v2(void *handle, struct attributes *into) {
    DEVICE
    const char *value = get(of, "attributes");
    unsigned long long megabytes = 0;
    memset(into, 0, sizeof *into);
    if (!value || sscanf(value, "%u:%u:%llu", &into->gpu_slices, &into->compute_slices, &megabytes) != 3) return NOT_SUPPORTED;
    into->megabytes = megabytes;
    return OK;
}
#endif

struct process { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; };

static unsigned step(void) {
    const char *path = getenv("FAKE_NVML_STEP");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned pid = 0;
    if (!file) return 0;
    if (fscanf(file, "%u", &pid) != 1) pid = 0;
    fclose(file);
    return pid;
}

static int processes(void *handle, unsigned *count, struct process *into) {
    DEVICE
    unsigned found = 0, here;
    const char *value;
    struct use uses[DEVICES];
    here = uses_of(of, uses, DEVICES);
    while (nth(of, "process", (int)found)) found++;
    if (found + here > *count) {
        *count = found + here;
        return TOO_SMALL;
    }
    unsigned there = 0;
    for (; there < here; there++) into[there] = (struct process){uses[there].pid, uses[there].memory, UINT32_MAX, UINT32_MAX};
    for (unsigned i = 0; i < found && (value = nth(of, "process", (int)i)); i++) {
        const char *colon = strchr(value, ':');
        unsigned pid = strncmp(value, "STEP", 4) ? (unsigned)atoi(value) : step();
        if (!pid) continue;
        into[there].pid = pid;
        into[there].memory = colon ? strtoull(colon + 1, NULL, 10) : UINT64_MAX; /* the driver does not tell */
        into[there].gpu_instance = into[there].compute_instance = UINT32_MAX;
        there++;
    }
    *count = there;
    return OK;
}
#ifndef WITHOUT_PROCESSES
#ifndef WITHOUT_PROCESSES_V3
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *into) {
    return processes(handle, count, into);
}
#endif
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct process *into) {
    return processes(handle, count, into);
}
#endif

#ifndef WITHOUT_METERS
enum { POWER, TEMPERATURE, CLOCK, REASONS, ENERGY, BURSTS, COUNTERS, LOOKS };

/* The next value of a list, or its last. */
static int scripted(struct section *of, const char *key, int turn, unsigned long long *into) {
    const char *value = get(of, key), *comma;
    if (!value) return NOT_SUPPORTED;
    for (int i = 0; i < of->turns[turn] && (comma = strchr(value, ',')); i++) value = comma + 1;
    of->turns[turn]++;
    *into = strtoull(value, NULL, 0);
    return OK;
}
static int small(struct section *of, const char *key, int turn, unsigned *into) {
    unsigned long long value = 0;
    int failed = scripted(of, key, turn, &value);
    *into = (unsigned)value;
    return failed;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *into) { DEVICE return small(of, "power", POWER, into); }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *into) {
    DEVICE
    return sensor ? INVALID : small(of, "temperature", TEMPERATURE, into);
}
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *into) {
    DEVICE
    return kind != 1 ? INVALID : small(of, "clock", CLOCK, into); /* 1 = multiprocessors */
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *good, unsigned *bad, unsigned *pending, unsigned *failure) {
    DEVICE
    if (!get(of, "remap_pending") && !get(of, "remap_failed")) return NOT_SUPPORTED;
    *good = *bad = 1;
    *pending = (unsigned)number(of, "remap_pending");
    *failure = (unsigned)number(of, "remap_failed");
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *pending) {
    DEVICE
    *pending = (unsigned)number(of, "retire_pending");
    return get(of, "retire_pending") ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *errors) {
    DEVICE
    *errors = (unsigned)number(of, "ecc_errors");
    return type != 1 || counter != 0 ? INVALID : get(of, "ecc_errors") ? OK : NOT_SUPPORTED; /* uncorrected, volatile */
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *into) {
    DEVICE return scripted(of, "reasons", REASONS, into);
}
#ifndef WITHOUT_NEW_REASONS
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *into) {
    DEVICE return scripted(of, "reasons", REASONS, into);
}
#endif
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *into) {
    DEVICE
    const char *value = get(of, "energy"), *comma = value ? strchr(value, ',') : NULL;
    if (!value) return NOT_SUPPORTED;
    *into = strtoull(value, NULL, 10) + (comma ? strtoull(comma + 1, NULL, 10) : 0) * (unsigned)of->turns[ENERGY]++;
    return OK;
}
int nvmlDeviceGetPcieThroughput(void *handle, int counter, unsigned *into) {
    DEVICE
    unsigned rates[2] = {0, 0}; /* received, sent */
    const char *value = get(of, "pcie");
    if (!value || sscanf(value, "%u,%u", &rates[0], &rates[1]) != 2) return NOT_SUPPORTED;
    *into = rates[counter == 0]; /* 0 = sent, 1 = received */
    return OK;
}
struct value { unsigned field, scope; long long time, latency; int type, result; unsigned long long value; };
int nvmlDeviceGetFieldValues(void *handle, int count, struct value *into) {
    DEVICE
    unsigned long long more[2] = {0, 0};
    const char *value = get(of, "counters");
    if (!value || sscanf(value, "%llu,%llu", &more[0], &more[1]) != 2) return NOT_SUPPORTED;
    of->turns[COUNTERS]++;
    for (int i = 0; i < count; i++) {
        int known = into[i].field == 197 || into[i].field == 198; /* sent, received */
        into[i].result = known ? OK : NOT_SUPPORTED;
        into[i].type = 3; /* unsigned long long */
        into[i].value = known ? more[into[i].field == 197] * (unsigned)of->turns[COUNTERS] : 0;
    }
    return OK;
}
struct burst { unsigned long long time, value; };
int nvmlDeviceGetSamples(void *handle, int kind, unsigned long long seen, int *type, unsigned *count, struct burst *into) {
    DEVICE
    const char *value = get(of, "bursts");
    unsigned found = 0;
    if (!value || kind != 1) return NOT_SUPPORTED; /* 1 = utilisation */
    if (!into) of->turns[BURSTS] += 3;
    for (int i = 0; value && i < of->turns[BURSTS]; i++) {
        unsigned long long time = 1000000ULL + (unsigned)i * 166667ULL;
        if (time > seen) {
            if (into && found < *count) into[found] = (struct burst){time, (unsigned)atoi(value)};
            found++;
        }
        value = strchr(value, ',');
        if (value) value++;
    }
    *type = 1;
    *count = found;
    return found ? OK : NOT_FOUND;
}

struct event { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
static int looks;
int nvmlEventSetCreate(void **set) {
    *set = &looks;
    for (int i = 0; i <= DEVICES; i++) sections[i].followed = 0;
    return called();
}
int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *into) {
    DEVICE
    *into = 8 | 2; /* critical errors (XID), errors of two bits */
    return of->parent ? NOT_SUPPORTED : OK;
}
int nvmlDeviceRegisterEvents(void *handle, unsigned long long kinds, void *set) {
    DEVICE
    if (!kinds || kinds & ~10ULL || set != &looks) return INVALID;
    of->followed = (int)kinds;
    return OK;
}
int nvmlEventSetWait_v2(void *set, struct event *into, unsigned milliseconds) {
    int failed = called();
    (void)milliseconds;
    if (failed || set != &looks) return failed ? failed : INVALID;
    for (int i = 1; i < section_count; i++) {
        struct section *of = &sections[i];
        int at = 0, code = 0, look = of->followed ? ++of->turns[LOOKS] : 0;
        const char *xid = get(of, "xid"), *bits = get(of, "double_bit");
        if (of->followed & ~of->told & 8 && xid && sscanf(xid, "%d:%d", &at, &code) == 2 && look >= at) {
            of->told |= 8;
            *into = (struct event){of, 8, (unsigned)code, UINT32_MAX, UINT32_MAX};
            return OK;
        }
        if (of->followed & ~of->told & 2 && bits && look >= atoi(bits)) {
            of->told |= 2;
            *into = (struct event){of, 2, 0, UINT32_MAX, UINT32_MAX};
            return OK;
        }
    }
    return TIMEOUT;
}
#endif
