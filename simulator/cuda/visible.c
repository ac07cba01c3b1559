/*
 * CUDA_VISIBLE_DEVICES (CUDA C++ programming guide, "CUDA environment
 * variables"): a list of indexes or of UUIDs, which may be cut short as long as
 * they are unambiguous. What comes after the first entry that means nothing is
 * ignored; an entry that is there twice leaves nothing. A process sees at most
 * one MIG device.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* "MIG-GPU-<uuid>/1/0", as drivers before R470 wrote it. */
static bool old_mig_name(const char *text, size_t len, const struct candidate *c)
{
	char parent[80] = "";
	const char *slash = memchr(text, '/', len);
	size_t n = slash ? (size_t)(slash - text) : 0;
	char *rest;

	if (len < 8 || strncmp(text, "MIG-GPU-", 8) != 0 || !slash || n - 4 >= sizeof parent)
		return false;
	memcpy(parent, text + 4, n - 4);
	unsigned long gi = strtoul(slash + 1, &rest, 10);

	return strcmp(parent, c->parent) == 0 && *rest == '/' && gi == c->gi && strtoul(rest + 1, NULL, 10) == c->ci;
}

static int find_uuid(const char *text, size_t len, const struct candidate *all, int n)
{
	int found = -1;

	for (int i = 0; i < n; i++) {
		bool is = (strlen(all[i].uuid) >= len && strncmp(all[i].uuid, text, len) == 0) ||
		          (all[i].mig && old_mig_name(text, len, &all[i]));

		if (!is)
			continue;
		if (found >= 0)
			return -1; /* ambiguous */
		found = i;
	}
	return found;
}

/* Index k counts what is not hidden. */
static int find_index(long k, const struct candidate *all, int n)
{
	for (int i = 0; i < n; i++)
		if (!all[i].hidden && k-- == 0)
			return i;
	return -1;
}

static int one_mig(const struct candidate *all, int *chosen, int count)
{
	for (int i = 0; i < count; i++) {
		if (all[chosen[i]].mig) {
			chosen[0] = chosen[i];
			return 1;
		}
	}
	return count;
}

int visible_devices(const char *value, const struct candidate *all, int n, int *chosen)
{
	int count = 0;

	if (!value) {
		for (int i = 0; i < n; i++)
			if (!all[i].hidden)
				chosen[count++] = i;
		/* Whole GPUs are listed first; where there is one, MIG devices are only had by name. */
		for (int i = 1; i < count; i++)
			if (all[chosen[i]].mig && !all[chosen[0]].mig)
				count = i;
		return one_mig(all, chosen, count);
	}
	bool names = strncmp(value, "GPU-", 4) == 0 || strncmp(value, "MIG-", 4) == 0;

	while (*value && count < MAX_DEVICES) {
		size_t len = strcspn(value, ",");
		int i;

		if (names) {
			i = len > 4 ? find_uuid(value, len, all, n) : -1;
		} else {
			char *rest;
			long k = strtol(value, &rest, 10);

			i = rest == value || k < 0 ? -1 : find_index(k, all, n);
		}
		if (i < 0)
			break;
		for (int k = 0; k < count; k++)
			if (chosen[k] == i)
				return 0;
		chosen[count++] = i;
		value += len + (value[len] == ',');
	}
	return one_mig(all, chosen, count);
}
