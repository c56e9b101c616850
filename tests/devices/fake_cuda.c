/* A libcuda.so.1 that has no GPU and answers from a scenario: a text file named by FAKE_CUDA_SCENARIO.
 *
 * Lines are "key = value"; "uuid" may come several times, once for each device of the machine.
 *
 *   init = 803 (what cuInit returns)       version = 12020 (what cuDriverGetVersion tells)
 *   count = 100 (what cuDeviceGetCount returns)
 *   uuid = GPU-11111111-2222-3333-4444-555555555555 (or MIG-…)
 *   crash = 1 (cuInit ends the process by SIGSEGV)     hang = 1 (cuInit never returns)    prints = text (on stdout)
 *
 * CUDA_VISIBLE_DEVICES is honoured as the real one does it: numbers and beginnings of UUIDs; the first that names no
 * device ends the list, and a device named twice leaves none. Compiled with -DWITHOUT_UUID_V2 it lacks what drivers
 * before CUDA 11.4 lack.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, UNINITIALISED = 3, NO_DEVICE = 100, BAD_DEVICE = 101 };
enum { DEVICES = 32, TEXT = 160 };

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

static void look(void) {
    const char *listed = getenv("CUDA_VISIBLE_DEVICES");
    char items[4096], *rest = items, *item;
    seen = 0;
    if (!listed) {
        for (; seen < here; seen++) visible[seen] = seen;
        return;
    }
    snprintf(items, sizeof items, "%s", listed);
    while ((item = strsep(&rest, ","))) {
        int device = named(trimmed(item));
        if (device < 0) return;
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
