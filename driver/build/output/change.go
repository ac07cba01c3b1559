package output

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// change is a change of the kernel that a driver has to support, or its modules do not compile.
type change struct {
	// pattern matches the message of gcc, clang or modpost for a driver that does not know it.
	pattern *regexp.Regexp
	what    string // completes "driver 535.261.03 does not know that"
	kernels string // that have it: "Linux 6.19"
	// known lists drivers that know the change, in ascending order, at most one of a branch.
	// Later drivers of these branches and all later branches know it, too.
	known []string
}

// changes has a row only where the driver that knows the change is documented; the comment
// names the source. "Debian" is the changelog of the package nvidia-graphics-drivers
// 535.309.01, which names the version of each fix. A version there knows the change, but is
// not always the first.
var changes = []change{
	{
		// conftest.sh of 535.309.01 has pci_resize_resource_has_exclude_bars_arg, 535.261.03's
		// does not, and that fails with headers of Debian's 6.1.0-56. Those of 6.1.0-50, which
		// is 6.1.176, have three arguments, those of 6.1.0-53, 6.1.187, have four. It was in
		// linux-next on 14 November 2025 (commit 337b1b566db0), says conftest.sh: in 6.19.
		// For 580.126.09 and 6.12.97: https://github.com/truenas/scale-build/pull/1002
		regexp.MustCompile(`too few arguments to function 'pci_resize_resource'`),
		"pci_resize_resource() has a fourth argument", "Linux 6.19, 6.12.97 and Debian's 6.1.0-53",
		[]string{"535.309.01", "580.126.09"},
	},
	{
		// Debian, 535.247.01-2. https://github.com/zabbly/linux/issues/43 has the message.
		regexp.MustCompile(`GPL-only symbol '__vma_start_write'`),
		"__vma_start_write() is for modules under the GPL alone", "Linux 6.15",
		[]string{"570.169"},
	},
	{
		// Debian, 535.247.01-2: nv_timer_delete_sync.
		undeclaredPattern("del_timer_sync"),
		"del_timer_sync() is gone", "Linux 6.15",
		[]string{"570.153.02"},
	},
	{
		// Debian, 535.247.01-2. https://github.com/NVIDIA/open-gpu-kernel-modules/issues/866
		undeclaredPattern("make_device_exclusive_range"),
		"make_device_exclusive_range() is gone", "Linux 6.15",
		[]string{"570.153.02"},
	},
	{
		// Debian, 535.216.03-3: drm_driver_has_date.
		noMember("drm_driver", "date"),
		"struct drm_driver has no date", "Linux 6.14",
		[]string{"570.124.04"},
	},
	{
		// Debian, 535.216.03-3: module_import_ns_takes_string_literal.
		// https://github.com/NVIDIA/open-gpu-kernel-modules/issues/751 has the message.
		regexp.MustCompile(`before '?DMA_BUF'?`),
		"MODULE_IMPORT_NS() takes a string", "Linux 6.13",
		[]string{"550.144.03"},
	},
	{
		// Debian, 535.216.03-3.
		undeclaredPattern("crypto_akcipher_verify"),
		"crypto_akcipher_verify() is gone", "Linux 6.13",
		[]string{"550.144.03"},
	},
	{
		// Debian, 535.216.03-3: folio_test_swapcache.
		undeclaredPattern("PageSwapCache"),
		"PageSwapCache() is gone", "Linux 6.13",
		[]string{"565.57.01"},
	},
	{
		// NVIDIA's own words in Debian, 535.216.01-1.
		// https://github.com/NixOS/nixpkgs/issues/371259 has the message.
		noMember("drm_mode_config_funcs", "output_poll_changed"),
		"struct drm_mode_config_funcs has no output_poll_changed", "Linux 6.12",
		[]string{"535.216.01"},
	},
	{
		// Debian, 535.183.06-1.
		undeclaredPattern("follow_pfn"),
		"follow_pfn() is gone", "Linux 6.10",
		[]string{"550.90.07"},
	},
	{
		// Debian, 535.104.12-2: drm_unlocked_ioctl_flag_present.
		undeclaredPattern("DRM_UNLOCKED"),
		"DRM_UNLOCKED is gone", "Linux 6.8",
		[]string{"470.239.06"},
	},
	{
		// https://github.com/Azure/aks-gpu/pull/40; the kernels: Debian, 535.54.03-1, and
		// https://github.com/xanmod/linux/issues/411.
		regexp.MustCompile(`GPL-only symbol '__rcu_read_(un)?lock'`),
		"pfn_valid() calls functions that are for modules under the GPL alone", "Linux 6.8, 6.7.3, 6.6.15 and 6.1.76",
		[]string{"535.161.08"},
	},
	{
		// https://github.com/NVIDIA/gpu-operator/issues/729, in NVIDIA's words.
		regexp.MustCompile(`GPL-only symbol 'rcu_read_unlock_strict'`),
		"rcu_read_unlock_strict() is for modules under the GPL alone", "later updates of Linux 5.15",
		[]string{"535.183.08"},
	},
	{
		// Debian, 530.41.03-3.
		regexp.MustCompile(`too many arguments to function '(get|pin)_user_pages(_remote)?'`),
		"get_user_pages() has an argument less", "Linux 6.5",
		[]string{"535.86.05"},
	},
	{
		// Debian, 525.105.17-2: drm_driver_has_dumb_destroy.
		noMember("drm_driver", "dumb_destroy"),
		"struct drm_driver has no dumb_destroy", "Linux 6.4",
		[]string{"525.116.03"},
	},
	{
		// Debian, 515.105.01-1: vm_area_struct_has_const_vm_flags.
		regexp.MustCompile(`read-only member 'vm_flags'|const-qualified data member 'vm_flags'`),
		"vm_flags is set by functions", "Linux 6.3",
		[]string{"470.199.02"},
	},
	{
		// Debian, 510.108.03-3: drm_connector_has_override_edid.
		noMember("drm_connector", "override_edid"),
		"struct drm_connector has no override_edid", "Linux 6.2",
		[]string{"525.78.01"},
	},
}

// findChange returns a hint for an error from a change of the kernel that a driver does not
// know. It returns "" if no row matches, or the row does not name a later driver. A driver of
// "" is unknown.
func findChange(driver, message string) string {
	for _, c := range changes {
		if !c.pattern.MatchString(message) {
			continue
		}
		if driver == "" {
			return fmt.Sprintf("this driver version does not know that %s since %s: %s does, or a later one", c.what, c.kernels, strings.Join(c.known, " or "))
		}
		if take := c.firstAfter(driver); take != "" {
			return fmt.Sprintf("driver %s does not know that %s since %s: take %s", driver, c.what, c.kernels, take)
		}
	}
	return ""
}

// firstAfter returns the driver to use instead of one, of the same branch if possible and else
// of the next; "" if none is known.
func (c change) firstAfter(driver string) string {
	for i, v := range c.known {
		switch {
		case compareVersions(v, driver) > 0 && i == len(c.known)-1:
			return v + " or a later one"
		case compareVersions(v, driver) > 0:
			return v + " or a later one of branch " + driverBranch(v)
		case driverBranch(v) == driverBranch(driver):
			return "" // it knows the change
		}
	}
	return ""
}

// undeclaredPattern matches the messages of gcc and clang for a name that the kernel has removed.
func undeclaredPattern(name string) *regexp.Regexp {
	return regexp.MustCompile(`(implicit declaration of|call to undeclared) function '` + name + `'|'` + name + `' undeclared|undeclared identifier '` + name + `'`)
}

// noMember matches their messages for a removed member of a structure of the kernel.
func noMember(structure, member string) *regexp.Regexp {
	return regexp.MustCompile(`struct ` + structure + `' has no member named '` + member + `'|'` + member + `' (does not refer to any field in type|in) '(const )?struct ` + structure + `'`)
}

// driverBranch returns the branch of a driver: 535 of 535.261.03.
func driverBranch(driver string) string {
	b, _, _ := strings.Cut(driver, ".")
	return b
}

// compareVersions compares versions of drivers by their numbers, as cmp.Compare does.
func compareVersions(a, b string) int {
	return slices.Compare(versionNumbers(a), versionNumbers(b))
}

// versionNumbers returns the numbers of a version. One that cannot be read is -1.
func versionNumbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			n = -1
		}
		all = append(all, n)
	}
	return all
}
