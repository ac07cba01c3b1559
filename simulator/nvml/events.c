/*
 * Event sets. A set remembers up to which event of the state's ring it has looked,
 * and a waiter sleeps on the state's wake word: nothing is polled, and nothing that
 * happens between registration and the first wait is missed.
 */
#include "internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct set {
	struct set *next;
	const struct gpusim_file *file;
	uint64_t cursor;                   /* the next event to look at */
	uint64_t types[GPUSIM_GPUS];       /* what is registered for each GPU */
	uint64_t since[GPUSIM_GPUS];       /* events before that are older than the registration */
	unsigned waiters;
	int freed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static struct set *sets;

static struct set *find(nvmlEventSet_t handle)
{
	struct set *set = sets;
	while (set && set != (struct set *)handle.handle)
		set = set->next;
	return set && !set->freed ? set : NULL;
}

static uint64_t head_of(const struct gpusim_file *file)
{
	return __atomic_load_n(&file->event_head, __ATOMIC_ACQUIRE);
}

/* Injected from outside: event calls fail as they do with a broken driver. */
static nvmlReturn_t broken(const struct gpusim_file *file)
{
	uint32_t error;
	gpusim_copy(file, offsetof(struct gpusim_state, event_error), &error, sizeof error);
	return (nvmlReturn_t)error;
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
	const struct gpusim_file *file = state();
	if (!file)
		return NVML_ERROR_UNINITIALIZED;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t err = broken(file);
	if (err != NVML_SUCCESS)
		return err;
	struct set *set = calloc(1, sizeof *set);
	if (!set)
		return NVML_ERROR_MEMORY;
	set->file = file;
	set->cursor = head_of(file);
	pthread_mutex_lock(&lock);
	set->next = sets;
	sets = set;
	pthread_mutex_unlock(&lock);
	out->handle = (struct nvmlEventSet_st *)set;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	struct target target;
	uint32_t ecc, mig, virtualization;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err != NVML_SUCCESS)
		return err;
	if (!types)
		return NVML_ERROR_INVALID_ARGUMENT;
	FIELD(target.file, target.gpu, virtualization, &virtualization);
	if (virtualization == NVML_GPU_VIRTUALIZATION_MODE_VGPU)
		return NVML_ERROR_NOT_SUPPORTED; /* the host's driver has them */
	FIELD(target.file, target.gpu, ecc_supported, &ecc);
	FIELD(target.file, target.gpu, mig_supported, &mig);
	*types = nvmlEventTypePState | nvmlEventTypeXidCriticalError | nvmlEventTypeClock |
		 nvmlEventTypeGpuUnavailableError | nvmlEventTypeGpuRecoveryAction;
	if (ecc)
		*types |= nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError |
			  nvmlEventTypeSingleBitEccErrorStorm | nvmlEventTypeDramRetirementEvent |
			  nvmlEventTypeDramRetirementFailure;
	if (mig)
		*types |= nvmlEventMigConfigChange;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle)
{
	struct target target;
	unsigned long long supported;
	nvmlReturn_t err = gpu_target(device, &target);
	if (err == NVML_SUCCESS)
		err = broken(target.file);
	if (err == NVML_SUCCESS)
		err = nvmlDeviceGetSupportedEventTypes(device, &supported);
	if (err != NVML_SUCCESS)
		return err;
	if (types & ~supported)
		return NVML_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&lock);
	struct set *set = find(handle);
	if (!set) {
		err = NVML_ERROR_INVALID_ARGUMENT;
	} else {
		/* Registered again, a GPU keeps its place: what is on its way still comes. */
		if (set->types[target.gpu] == 0)
			set->since[target.gpu] = head_of(set->file);
		set->types[target.gpu] |= types;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

/* read_event copies event number n; 0 if a writer has come round the ring meanwhile. */
static int read_event(const struct gpusim_file *file, uint64_t n, struct gpusim_event *out)
{
	const struct gpusim_event *entry = &file->event[n % GPUSIM_EVENTS];
	if (__atomic_load_n(&entry->number, __ATOMIC_ACQUIRE) != n)
		return 0;
	memcpy(out, entry, sizeof *out);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&entry->number, __ATOMIC_ACQUIRE) == n;
}

/* take finds the next event that the set is registered for. Called with the lock held. */
static int take(struct set *set, struct gpusim_event *event)
{
	uint64_t head = head_of(set->file);
	if (head > GPUSIM_EVENTS && set->cursor < head - GPUSIM_EVENTS)
		set->cursor = head - GPUSIM_EVENTS; /* a driver's queue, too, drops the oldest */
	for (; set->cursor < head; set->cursor++) {
		if (!read_event(set->file, set->cursor, event) || event->gpu >= GPUSIM_GPUS)
			continue;
		if (!(set->types[event->gpu] & event->type) || set->cursor < set->since[event->gpu])
			continue;
		set->cursor++;
		return 1;
	}
	return 0;
}

/* lost: a registered GPU fell off the bus in the way that the wait itself says so. */
static int lost(const struct set *set)
{
	for (unsigned i = 0; i < GPUSIM_GPUS; i++) {
		uint32_t how;
		FIELD(set->file, i, lost, &how);
		if (set->types[i] && how == GPUSIM_LOST_EVENTS)
			return 1;
	}
	return 0;
}

static nvmlReturn_t look(struct set *set, nvmlEventData_t *out)
{
	struct gpusim_event event;
	nvmlReturn_t err = broken(set->file);
	if (err != NVML_SUCCESS)
		return err;
	if (!take(set, &event))
		return lost(set) ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_TIMEOUT;
	*out = (nvmlEventData_t){
		.device.handle = (void *)handle_of(KIND_GPU, event.gpu, NONE, NONE, ""),
		.eventType = event.type,
		.eventData = event.data,
		.gpuInstanceId = event.gi,
		.computeInstanceId = event.ci,
	};
	return NVML_SUCCESS;
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static nvmlReturn_t wait_for(struct set *set, nvmlEventData_t *out, unsigned timeout_ms)
{
	const uint64_t end = now_ns() + (uint64_t)timeout_ms * 1000000;
	for (;;) {
		/* Noted before looking: a change after the look wakes the wait at once. */
		uint32_t seen = gpusim_wake_word(set->file);
		if (set->freed)
			return NVML_ERROR_INVALID_ARGUMENT;
		nvmlReturn_t err = look(set, out);
		uint64_t now = now_ns();
		if (err != NVML_ERROR_TIMEOUT || now >= end)
			return err;
		uint64_t rest = (end - now + 999999) / 1000000; /* never short of the end */
		pthread_mutex_unlock(&lock);
		gpusim_wait(set->file, seen, rest > INT_MAX ? INT_MAX : (int)rest);
		pthread_mutex_lock(&lock);
	}
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *out, unsigned int timeout_ms)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t err = NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_lock(&lock);
	struct set *set = find(handle);
	if (set) {
		set->waiters++;
		err = wait_for(set, out, timeout_ms);
		set->waiters--;
		pthread_cond_broadcast(&left);
	}
	pthread_mutex_unlock(&lock);
	return err;
}

/* The first version's clients know no MIG. */
API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t *out, unsigned int timeout_ms)
{
	nvmlEventData_t data;
	nvmlReturn_t err = nvmlEventSetWait_v2(handle, out ? &data : NULL, timeout_ms);
	if (err == NVML_SUCCESS)
		memcpy(out, &data, offsetof(nvmlEventData_t, gpuInstanceId));
	return err;
}

/*
 * drain waits until nobody waits on the set any more. A waiter may be just about
 * to sleep when the word is woken, and nobody here may change the word: so it is
 * woken again until the last one has left.
 */
static void drain(struct set *set)
{
	while (set->waiters > 0) {
		syscall(SYS_futex, &set->file->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
		struct timespec soon;
		clock_gettime(CLOCK_REALTIME, &soon);
		soon.tv_nsec += 1000000;
		if (soon.tv_nsec >= 1000000000) {
			soon.tv_sec++;
			soon.tv_nsec -= 1000000000;
		}
		pthread_cond_timedwait(&left, &lock, &soon);
	}
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle)
{
	if (!state())
		return NVML_ERROR_UNINITIALIZED;
	nvmlReturn_t err = NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_lock(&lock);
	struct set *set = find(handle);
	if (set) {
		set->freed = 1; /* nobody finds it from now on */
		drain(set);
		for (struct set **at = &sets; *at; at = &(*at)->next) {
			if (*at == set) {
				*at = set->next;
				break;
			}
		}
		free(set);
		err = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return err;
}
