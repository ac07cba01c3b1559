package output

import (
	"compress/gzip"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

func TestFailureNamesTheFirstDriverThatKnowsTheKernel(t *testing.T) {
	const (
		resize = "too few arguments to function 'pci_resize_resource'"
		since  = " does not know that pci_resize_resource() has a fourth argument since Linux 6.19, 6.12.97 and Debian's 6.1.0-53: take "
	)
	for _, c := range []struct{ driver, message, want string }{
		{"535.261.03", resize, "driver 535.261.03" + since + "535.309.01 or a later one of branch 535"},
		{"535.261.03", resize + "; expected 4, have 3", "driver 535.261.03" + since + "535.309.01 or a later one of branch 535"},
		{"470.256.02", resize, "driver 470.256.02" + since + "535.309.01 or a later one of branch 535"},
		{"550.163.01", resize, "driver 550.163.01" + since + "580.126.09 or a later one"},
		{"580.95.05", resize, "driver 580.95.05" + since + "580.126.09 or a later one"},
		// A driver that knows this change fails at another one, which is not in the table.
		{"535.309.01", resize, hintDriver},
		{"580.173.02", resize, hintDriver},
		{"590.44.01", resize, hintDriver},
		{"535.261.03", "too many arguments to function 'pci_resize_resource'", hintDriver},
		{"535.261.03", "implicit declaration of function 'pci_resize'", hintDriver},

		{"535.183.06", "'struct drm_mode_config_funcs' has no member named 'output_poll_changed'",
			"driver 535.183.06 does not know that struct drm_mode_config_funcs has no output_poll_changed since Linux 6.12: take 535.216.01 or a later one"},
		{"555.58.02", "'const struct drm_mode_config_funcs' has no member named 'output_poll_changed'", hintDriver},
		{"570.153.02", "GPL-incompatible module nvidia.ko uses GPL-only symbol '__vma_start_write'",
			"driver 570.153.02 does not know that __vma_start_write() is for modules under the GPL alone since Linux 6.15: take 570.169 or a later one"},
		{"570.169", "GPL-incompatible module nvidia.ko uses GPL-only symbol '__vma_start_write'", hintLicense},
		{"550.40.07", "field designator 'date' does not refer to any field in type 'struct drm_driver'",
			"driver 550.40.07 does not know that struct drm_driver has no date since Linux 6.14: take 570.124.04 or a later one"},
		{"550.40.07", "no member named 'date' in 'struct drm_driver'",
			"driver 550.40.07 does not know that struct drm_driver has no date since Linux 6.14: take 570.124.04 or a later one"},
		{"565.77", "expected ',' or ';' before 'DMA_BUF'", ""},
		{"545.29.06", "call to undeclared function 'follow_pfn'; ISO C99 and later do not support implicit function declarations",
			"driver 545.29.06 does not know that follow_pfn() is gone since Linux 6.10: take 550.90.07 or a later one"},
	} {
		o := New("/build/source", slog.New(slog.DiscardHandler))
		o.Driver = c.driver
		_, err := o.Write([]byte("/build/source/nvidia/nv.c:1:2: error: " + c.message + "\n"))
		require.NoError(t, err)
		require.Equal(t, c.want, o.Failure.Hint, "%s: %s", c.driver, c.message)
	}
}

func TestTableOfChangesIsInOrder(t *testing.T) {
	version := regexp.MustCompile(`^\d{3}(\.\d{2,3}){1,2}$`)
	for _, c := range changes {
		require.NotEmpty(t, c.known, c.what)
		for i, v := range c.known {
			require.Regexp(t, version, v)
			if i > 0 {
				require.Negative(t, compareVersions(c.known[i-1], v), c.what)
				require.NotEqual(t, driverBranch(c.known[i-1]), driverBranch(v), c.what)
			}
		}
	}
	require.Equal(t, []string{"470.86", "470.256.02", "535.86.05", "535.261.03", "580.95.05"},
		slices.SortedFunc(slices.Values([]string{"580.95.05", "535.261.03", "470.256.02", "535.86.05", "470.86"}), compareVersions))
}

// samples holds a message of the compiler for each row of the table. Where the source of the
// row is the changelog of Debian's package, it also holds the changelog's name of the fix.
var samples = []struct{ message, fix string }{
	{"too few arguments to function 'pci_resize_resource'", ""},
	{"GPL-incompatible module nvidia.ko uses GPL-only symbol '__vma_start_write'", "nv_vma_start_write"},
	{"implicit declaration of function 'del_timer_sync'; did you mean 'timer_delete_sync'?", "nv_timer_delete_sync"},
	{"implicit declaration of function 'make_device_exclusive_range'", "make_device_exclusive"},
	{"'struct drm_driver' has no member named 'date'", "drm_driver_has_date"},
	{"expected ',' or ';' before 'DMA_BUF'", "module_import_ns_takes_string_literal"},
	{"implicit declaration of function 'crypto_akcipher_verify'", "crypto_akcipher_verify"},
	{"implicit declaration of function 'PageSwapCache'", "folio_test_swapcache"},
	{"'const struct drm_mode_config_funcs' has no member named 'output_poll_changed'", "drm_output_poll_changed"},
	{"implicit declaration of function 'follow_pfn'; did you mean 'follow_pte'?", "follow_pfn"},
	{"'DRM_UNLOCKED' undeclared here (not in a function)", "drm_unlocked_ioctl_flag_present"},
	{"GPL-incompatible module nvidia.ko uses GPL-only symbol '__rcu_read_lock'", ""},
	{"GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_unlock_strict'", ""},
	{"too many arguments to function 'get_user_pages'", "get_user_pages"},
	{"'struct drm_driver' has no member named 'dumb_destroy'", "drm_driver_has_dumb_destroy"},
	{"assignment of read-only member 'vm_flags'", "vm_area_struct_has_const_vm_flags"},
	{"'struct drm_connector' has no member named 'override_edid'", "drm_connector_has_override_edid"},
}

func TestEachRowOfTheTableHasAMessage(t *testing.T) {
	require.Len(t, samples, len(changes))
	for i, s := range samples {
		c := changes[i]
		require.Equal(t, "driver 1.0 does not know that "+c.what+" since "+c.kernels+": take "+c.firstAfter("1.0"), findChange("1.0", s.message))
		require.LessOrEqual(t, len(findChange("470.256.02", s.message)), 300)
		for _, m := range []string{findChange("", s.message), findHint(c.known[len(c.known)-1], s.message)} {
			require.NotContains(t, m, "driver 1.0")
		}
	}
}

// The table's versions from Debian's changelog match the changelog.
func TestRealChangelogHasTheTable(t *testing.T) {
	if os.Getenv("GPUREADY_REAL_DRIVER") == "" {
		t.Skip("make e2e-driver-real fetches Debian's package of NVIDIA's sources")
	}
	cache, err := binaries.DefaultCache()
	require.NoError(t, err)
	root, err := binaries.EnsureDebian(t.Context(), cache, binaries.NVIDIASources, os.Stderr)
	require.NoError(t, err)
	f, err := os.Open(filepath.Join(root, "usr/share/doc/nvidia-kernel-source/changelog.Debian.gz"))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	var entries []string
	for entry := range strings.SplitSeq(string(text), "\n  * ") {
		entries = append(entries, strings.Join(strings.Fields(entry), " "))
	}
	for i, s := range samples {
		if s.fix == "" {
			continue
		}
		require.True(t, slices.ContainsFunc(entries, func(entry string) bool {
			_, rest, found := strings.Cut(entry, s.fix)
			_, version, _ := strings.Cut(rest, " from ")
			return found && strings.Contains(version, changes[i].known[0]) && strings.Contains(entry, "module build for "+changes[i].kernels)
		}), "no entry says that %s is from %s, for %s", s.fix, changes[i].known[0], changes[i].kernels)
	}
}
