/* A libnvidia-ml.so.1 that has no GPU and answers from a scenario: a text file named by FAKE_NVML_SCENARIO.
 *
 * Lines are "key = value"; a line "[gpu]" begins a GPU and "[slice]" a MIG slice of the GPU above it; what stands before
 * the first is the system's. A question for which the scenario has no answer is "not supported", as with real drivers.
 *
 *   system: driver = 535.104.05    cuda = 12020    init = 9 (what nvmlInit returns)    count = 999 (what the count does)
 *           fails_after = 12 (from then on every call is an unknown error)
 *   gpu:    name, uuid, memory (bytes), used (bytes), capability = 9.0, nvlink = 1,2 (indexes of GPUs), mig = 1,
 *           process = PID:BYTES (again for another; without bytes the driver does not tell them),
 *           utilisation = 0,50,100 (a value for each time it is asked, then the last),
 *           fails = 15 (every call), lost_after = 3 (calls that still work), handle = 15 (what finding it returns)
 *   slice:  name, uuid, memory, used, process, attributes = GPU_SLICES:COMPUTE_SLICES:MEGABYTES
 *
 * Compiled with -DWITHOUT_P2P, -DWITHOUT_MIG, -DWITHOUT_PROCESSES_V3, -DWITHOUT_PROCESSES, -DWITHOUT_CUDA_V2 or
 * -DWITHOUT_INIT, it lacks the functions that an old driver lacks.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALISED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, UNKNOWN = 999 };
enum { DEVICES = 64, FIELDS = 24, TEXT = 160 };

struct field { char key[32], value[TEXT]; };
struct section { struct field fields[FIELDS]; int count, parent, index, calls, asked; };

static struct section sections[1 + DEVICES]; /* the first is the system's */
static int section_count, initialised, calls;

static void trim(char *text) {
    char *first = text + strspn(text, " \t\r\n");
    memmove(text, first, strlen(first) + 1);
    for (size_t length = strlen(text); length && strchr(" \t\r\n", text[length - 1]);) text[--length] = 0;
}

static void read_scenario(void) {
    const char *path = getenv("FAKE_NVML_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[TEXT];
    int gpus = 0, last_gpu = 0;
    memset(sections, 0, sizeof sections);
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
    const char *after = get(&sections[0], "fails_after");
    if (!initialised) return UNINITIALISED;
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
    read_scenario();
    calls = 0;
    initialised = !number(&sections[0], "init");
    return number(&sections[0], "init");
}
#endif
int nvmlShutdown(void) {
    int was = initialised;
    initialised = 0;
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

int nvmlDeviceGetMemoryInfo(void *handle, uint64_t *into) { /* total, free, used */
    DEVICE
    const char *total = get(of, "memory"), *used = get(of, "used");
    if (!total) return NOT_SUPPORTED;
    into[0] = strtoull(total, NULL, 10);
    into[2] = used ? strtoull(used, NULL, 10) : 0;
    into[1] = into[0] - into[2];
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *into) { /* GPU, memory */
    DEVICE
    const char *value = get(of, "utilisation"), *comma;
    if (!value) return NOT_SUPPORTED;
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

#ifndef WITHOUT_MIG
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    DEVICE
    *current = *pending = (unsigned)number(of, "mig");
    return get(of, "mig") ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    DEVICE
    *count = 7;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **found) {
    DEVICE
    *found = child((int)(of - sections), (int)index);
    return *found ? OK : NOT_FOUND;
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
static int processes(void *handle, unsigned *count, struct process *into) {
    DEVICE
    unsigned found = 0;
    const char *value;
    while (nth(of, "process", (int)found)) found++;
    if (found > *count) {
        *count = found;
        return TOO_SMALL;
    }
    for (unsigned i = 0; i < found && (value = nth(of, "process", (int)i)); i++) {
        const char *colon = strchr(value, ':');
        into[i].pid = (unsigned)atoi(value);
        into[i].memory = colon ? strtoull(colon + 1, NULL, 10) : UINT64_MAX; /* the driver does not tell */
        into[i].gpu_instance = into[i].compute_instance = UINT32_MAX;
    }
    *count = found;
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
