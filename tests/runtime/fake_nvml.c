/* A libnvidia-ml.so.1 that says what 0 to 8 GPUs do.

   FAKE_NVML_GPUS         how many there are; default: 2
   FAKE_NVML_UTILIZATION  percent; default: 90
   FAKE_NVML_INIT         the code that nvmlInit_v2 returns
   FAKE_NVML_HANDLE, FAKE_NVML_RATES, FAKE_NVML_MEMORY, FAKE_NVML_POWER, FAKE_NVML_UUID
                          the codes that the calls about a GPU return
   FAKE_NVML_BROKEN       the only GPU that they are returned for; default: all

   With -DWITHOUT_POWER or -DWITHOUT_INIT it lacks a function, as an older library does. */

#include <stdio.h>
#include <stdlib.h>

typedef int Code;
typedef void *Device;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned long long total, free, used; } Memory;

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static int index_of(Device device) { return (int)(long)device - 1; }

static Code code_of(const char *name, int index) {
  int broken = number("FAKE_NVML_BROKEN", index);
  return broken == index ? number(name, 0) : 0;
}

#ifndef WITHOUT_INIT
Code nvmlInit_v2(void) { return number("FAKE_NVML_INIT", 0); }
#endif

Code nvmlDeviceGetCount_v2(unsigned *count) {
  *count = number("FAKE_NVML_GPUS", 2);
  return 0;
}

Code nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
  if ((int)index >= number("FAKE_NVML_GPUS", 2)) return 2;
  *device = (Device)(long)(index + 1);
  return code_of("FAKE_NVML_HANDLE", index);
}

Code nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
  int index;
  if (sscanf(uuid, "MIG-%d", &index) != 1) return 6;
  *device = (Device)(long)(index + 1);
  return 0;
}

Code nvmlDeviceGetUUID(Device device, char *uuid, unsigned size) {
  snprintf(uuid, size, "GPU-%c0000000-fake", 'a' + index_of(device));
  return code_of("FAKE_NVML_UUID", index_of(device));
}

Code nvmlDeviceGetUtilizationRates(Device device, Rates *rates) {
  rates->gpu = number("FAKE_NVML_UTILIZATION", 90);
  return code_of("FAKE_NVML_RATES", index_of(device));
}

Code nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
  memory->total = 80ull << 30;
  memory->used = (10ull + index_of(device)) << 30;
  return code_of("FAKE_NVML_MEMORY", index_of(device));
}

#ifndef WITHOUT_POWER
Code nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
  *milliwatts = 350500;
  return code_of("FAKE_NVML_POWER", index_of(device));
}
#endif
