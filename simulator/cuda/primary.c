/* The primary context of a device, which the runtime API and its users share. */
#include "driver.h"

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	CUresult rc = check_ready();
	struct device *d = device_at(ordinal);

	if (rc)
		return rc;
	if (!out || !d)
		return out ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	if (device_lost(d))
		return CUDA_ERROR_UNKNOWN;
	pthread_mutex_lock(&driver.lock);
	if (!d->primary) {
		rc = new_context(ordinal, d->primary_flags, &d->primary);
		if (!rc)
			d->primary->primary = true;
	}
	if (!rc) {
		d->primary->refs++;
		*out = d->primary;
	}
	pthread_mutex_unlock(&driver.lock);
	return rc;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	CUresult rc = check_ready();
	struct device *d = device_at(ordinal);

	if (rc || !d)
		return rc ? rc : CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&driver.lock);
	if (!d->primary || !d->primary->refs)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	else if (--d->primary->refs == 0)
		destroy_context(d->primary);
	pthread_mutex_unlock(&driver.lock);
	return rc;
}
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	CUresult rc = check_ready();
	struct device *d = device_at(ordinal);

	if (rc || !d)
		return rc ? rc : CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&driver.lock);
	if (d->primary)
		destroy_context(d->primary);
	pthread_mutex_unlock(&driver.lock);
	return rc;
}
ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
	CUresult rc = check_ready();
	struct device *d = device_at(ordinal);

	if (rc || !d)
		return rc ? rc : CUDA_ERROR_INVALID_DEVICE;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver.lock);
	*flags = d->primary_flags;
	*active = d->primary != NULL;
	pthread_mutex_unlock(&driver.lock);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags)
{
	CUresult rc = check_ready();
	struct device *d = device_at(ordinal);

	if (rc || !d)
		return rc ? rc : CUDA_ERROR_INVALID_DEVICE;
	if (flags & ~0x1ffu)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&driver.lock);
	d->primary_flags = flags;
	if (d->primary)
		d->primary->flags = flags;
	pthread_mutex_unlock(&driver.lock);
	return CUDA_SUCCESS;
}
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);
