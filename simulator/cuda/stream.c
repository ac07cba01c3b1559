/*
 * Streams and events. Work is done when it is submitted, in the order of the
 * calls, which is one of the orders that streams allow; an event notes the time.
 */
#define _GNU_SOURCE /* clock_gettime */
#include "driver.h"

#include <stdlib.h>
#include <time.h>

struct stream {
	struct context *ctx;
	unsigned flags;
	int priority;
	uint64_t id;
	struct stream *next;
};

struct event {
	struct context *ctx;
	unsigned flags;
	int64_t ns; /* 0: not recorded */
	struct event *next;
};

/* 0: the null stream, 1: legacy, 2: per thread; they need no creation. */
static bool is_default(CUstream s) { return (uintptr_t)s <= 2; }

static struct stream *find_stream(CUstream wanted)
{
	for (struct context *c = driver.contexts; c; c = c->next)
		for (struct stream *s = c->streams; s; s = s->next)
			if (s == wanted)
				return s;
	return NULL;
}

static struct event *find_event(CUevent wanted)
{
	for (struct context *c = driver.contexts; c; c = c->next)
		for (struct event *e = c->events; e; e = e->next)
			if (e == wanted)
				return e;
	return NULL;
}

CUresult check_stream(CUstream s)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc || is_default(s))
		return rc;
	pthread_mutex_lock(&driver.lock);
	rc = find_stream(s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

void free_streams(struct context *c)
{
	while (c->streams) {
		struct stream *next = c->streams->next;

		free(c->streams);
		c->streams = next;
	}
	while (c->events) {
		struct event *next = c->events->next;

		free(c->events);
		c->events = next;
	}
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
	static uint64_t ids = 2;
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!out || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	struct stream *s = calloc(1, sizeof *s);

	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
	pthread_mutex_lock(&driver.lock);
	*s = (struct stream){.ctx = c, .flags = flags, .priority = priority, .id = ++ids, .next = c->streams};
	c->streams = s;
	pthread_mutex_unlock(&driver.lock);
	*out = s;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct stream *s = find_stream(stream);

	if (s) {
		struct stream **at = &s->ctx->streams;

		while (*at != s)
			at = &(*at)->next;
		*at = s->next;
		free(s);
	} else {
		rc = CUDA_ERROR_INVALID_HANDLE;
	}
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

EXPORT CUresult cuStreamSynchronize(CUstream s) { return check_stream(s); }
ALIAS(cuStreamSynchronize_ptsz, cuStreamSynchronize);
EXPORT CUresult cuStreamQuery(CUstream s) { return check_stream(s); }
ALIAS(cuStreamQuery_ptsz, cuStreamQuery);

static CUresult stream_detail(CUstream stream, struct stream *out)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	*out = (struct stream){.ctx = c, .id = (uint64_t)(uintptr_t)stream};
	if (is_default(stream))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&driver.lock);
	struct stream *s = find_stream(stream);

	if (s)
		*out = *s;
	pthread_mutex_unlock(&driver.lock);
	return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

#define STREAM_GETTER(name, type, field)                     \
	EXPORT CUresult name(CUstream stream, type *out)         \
	{                                                        \
		struct stream s;                                     \
		CUresult rc = stream_detail(stream, &s);             \
		if (!rc && !out)                                     \
			rc = CUDA_ERROR_INVALID_VALUE;                   \
		if (!rc)                                             \
			*out = s.field;                                  \
		return rc;                                           \
	}                                                        \
	ALIAS(name##_ptsz, name);
STREAM_GETTER(cuStreamGetFlags, unsigned, flags)
STREAM_GETTER(cuStreamGetPriority, int, priority)
STREAM_GETTER(cuStreamGetId, unsigned long long, id)
STREAM_GETTER(cuStreamGetCtx, CUcontext, ctx)

EXPORT CUresult cuStreamIsCapturing(CUstream s, int *status)
{
	CUresult rc = check_stream(s);

	if (!rc && status)
		*status = 0; /* graphs are not supported */
	return rc;
}
ALIAS(cuStreamIsCapturing_ptsz, cuStreamIsCapturing);

EXPORT CUresult cuStreamAttachMemAsync(CUstream s, CUdeviceptr p, size_t n, unsigned flags)
{
	(void)p;
	(void)n;
	(void)flags;
	return check_stream(s); /* managed memory is one memory for all */
}
ALIAS(cuStreamAttachMemAsync_ptsz, cuStreamAttachMemAsync);

EXPORT CUresult cuStreamAddCallback(CUstream s, void (*fn)(CUstream, CUresult, void *), void *data, unsigned flags)
{
	CUresult rc = check_stream(s);

	if (rc)
		return rc;
	if (!fn || flags)
		return CUDA_ERROR_INVALID_VALUE;
	fn(s, CUDA_SUCCESS, data);
	return CUDA_SUCCESS;
}
ALIAS(cuStreamAddCallback_ptsz, cuStreamAddCallback);

EXPORT CUresult cuLaunchHostFunc(CUstream s, void (*fn)(void *), void *data)
{
	CUresult rc = check_stream(s);

	if (rc)
		return rc;
	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	fn(data);
	return CUDA_SUCCESS;
}
ALIAS(cuLaunchHostFunc_ptsz, cuLaunchHostFunc);

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	if (!out || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & 4) /* between processes */
		return CUDA_ERROR_NOT_SUPPORTED;
	struct event *e = calloc(1, sizeof *e);

	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&driver.lock);
	*e = (struct event){.ctx = c, .flags = flags, .next = c->events};
	c->events = e;
	pthread_mutex_unlock(&driver.lock);
	*out = e;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	CUresult rc = check_ready();

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct event *e = find_event(event);

	if (e) {
		struct event **at = &e->ctx->events;

		while (*at != e)
			at = &(*at)->next;
		*at = e->next;
		free(e);
	} else {
		rc = CUDA_ERROR_INVALID_HANDLE;
	}
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	struct timespec t;
	CUresult rc = check_stream(stream);

	if (rc)
		return rc;
	clock_gettime(CLOCK_MONOTONIC, &t);
	pthread_mutex_lock(&driver.lock);
	struct event *e = find_event(event);

	if (e)
		e->ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
	else
		rc = CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&driver.lock);
	return rc;
}
ALIAS(cuEventRecord_ptsz, cuEventRecord);

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(event, stream);
}
ALIAS(cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags);

static CUresult check_event(CUevent event, struct event *out)
{
	struct context *c;
	CUresult rc = current_context(&c);

	if (rc)
		return rc;
	pthread_mutex_lock(&driver.lock);
	struct event *e = find_event(event);

	if (e && out)
		*out = *e;
	pthread_mutex_unlock(&driver.lock);
	return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEventSynchronize(CUevent e) { return check_event(e, NULL); }
EXPORT CUresult cuEventQuery(CUevent e) { return check_event(e, NULL); }

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	struct event a, b;
	CUresult rc = check_event(start, &a);

	if (!rc)
		rc = check_event(end, &b);
	if (rc)
		return rc;
	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!a.ns || !b.ns || (a.flags & 2) || (b.flags & 2)) /* DISABLE_TIMING */
		return CUDA_ERROR_INVALID_HANDLE;
	*ms = (float)((double)(b.ns - a.ns) / 1e6);
	return CUDA_SUCCESS;
}
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);

EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
	CUresult rc = check_stream(s);

	if (rc || flags > 1)
		return rc ? rc : CUDA_ERROR_INVALID_VALUE;
	return check_event(e, NULL);
}
ALIAS(cuStreamWaitEvent_ptsz, cuStreamWaitEvent);
ALIAS(cuStreamDestroy, cuStreamDestroy_v2);
ALIAS(cuEventDestroy, cuEventDestroy_v2);
