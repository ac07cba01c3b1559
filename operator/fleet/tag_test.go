package fleet

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/operator/label"
)

// osRelease reads a file as NFD does. The files have the relevant keys with the values of the
// named release's own /etc/os-release.
func osRelease(t *testing.T, name string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/os-release", name))
	require.NoError(t, err)
	fields := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)=(.+)$`).FindAllStringSubmatch(string(data), -1) {
		fields[m[1]] = strings.Trim(m[2], `"'`)
	}
	return fields
}

func TestTagsOfShippedSystems(t *testing.T) {
	tags := map[string]string{
		"rhcos-4.9": "rhcos4.9", "rhcos-4.12": "rhcos4.12", "rhcos-4.13": "rhcos4.13", "rhcos-4.14": "rhcos4.14", "rhcos-4.15": "rhcos4.15",
		"rhcos-4.16": "rhcos4.16", "rhcos-4.17": "rhcos4.17", "rhcos-4.18": "rhcos4.18",
		"rhcos-4.19": "rhel9.6", "rhcos-4.20": "rhel9.6", "rhcos-4.21": "rhel9.6", "rhcos-4.21-el10": "rhel10",
		"rhel-8.8": "rhel8.8", "rhel-8.10": "rhel8.10", "rhel-9.2": "rhel9.2", "rhel-9.4": "rhel9.4", "rhel-9.6": "rhel9.6", "rhel-10.0": "rhel10",
		"ubuntu-20.04": "ubuntu20.04", "ubuntu-22.04": "ubuntu22.04", "ubuntu-24.04": "ubuntu24.04", "ubuntu-26.04": "ubuntu26.04",
		"sles-15.6": "sles15.6", "sle-micro-5.5": "sle-micro5.5", "sl-micro-6.1": "sl-micro6.1",
		"debian-12": "debian12", "debian-13": "debian13", "amzn-2": "amzn2", "amzn-2023": "amzn2023",
		"rocky-8.10": "rocky8", "rocky-9.4": "rocky9", "almalinux-9.4": "almalinux9.4", "ol-8.9": "ol8.9", "centos-9": "centos9",
		"azurelinux-3.0": "azurelinux3.0", "flatcar-3815.2.0": "flatcar3815.2.0", "bottlerocket-1.19": "bottlerocket1.19.2",
	}
	files, err := os.ReadDir("testdata/os-release")
	require.NoError(t, err)
	require.Len(t, files, len(tags), "each file has a tag, and each tag a file")
	for name, tag := range tags {
		release := osRelease(t, name)
		labels := map[string]string{label.OSID: release["ID"], label.OSVersion: release["VERSION_ID"]}
		for key, field := range map[string]string{label.OSTree: "OSTREE_VERSION", label.RHELID: "RHEL_VERSION"} {
			if value := release[field]; value != "" {
				labels[key] = value
			}
		}
		n := node(labels)
		n.Status.NodeInfo.OSImage = ""
		pool := Observe(n).Pool
		require.Equal(t, tag, pool.OS, name)
		require.Equal(t, release["OSTREE_VERSION"], pool.RHCOS, name)
		require.Equal(t, strings.HasPrefix(name, "rhcos"), pool.CoreOS, name)

		n = node(nil)
		n.Status.NodeInfo.OSImage = release["PRETTY_NAME"]
		pool = Observe(n).Pool
		if !strings.HasPrefix(name, "bottlerocket") {
			require.Equal(t, tag, pool.OS, "%s, as the kubelet says it", name)
		}
		require.Equal(t, strings.HasPrefix(name, "rhcos"), pool.CoreOS, name)
		require.Empty(t, pool.RHCOS, "only where NFD labels it can a DaemonSet be confined by it")
	}
}

func TestTagsOfUnusualValues(t *testing.T) {
	for _, c := range []struct{ id, version, rhel, ostree, tag string }{
		{"rhcos", "412.86.202303241612-0", "8.6", "412.86.202303241612-0", "rhcos4.12"},
		{"rhcos", "4.12.7", "", "", "rhcos4.12"},
		{"rhcos", "", "", "418.94.202410090804-0", "rhcos4.18"},
		{"rhcos", "", "", "", ""},
		{"rhcos", "9.6", "", "9.6.20250530-0", ""},
		{"rhcos", "4x.86", "", "", ""},
		{"rhel", "", "9.4", "", "rhel9.4"},
		{"RHEL", "8.10", "", "", "rhel8.10"},
		{"rhel", "10", "", "", "rhel10"},
		{"kylin", "V10", "", "", "kylinV10"},
		{"openEuler", "22.03", "", "", "openeuler22.03"},
		{"debian", "", "", "", ""},
		{"", "12", "", "", ""},
		{"arch", "rolling release", "", "", ""},
		{"ubuntu", strings.Repeat("1", 60), "", "", ""},
	} {
		require.Equal(t, c.tag, Tag(c.id, c.version, c.rhel, c.ostree), "%+v", c)
	}
	for pretty, tag := range map[string]string{
		"": "", "Ubuntu": "", "Ubuntu ": "", "Ubuntu Core 22": "", "Ubuntu Resolute Raccoon (development branch)": "",
		"Debian GNU/Linux forky/sid": "", "Windows Server 2022 Datacenter": "", "Amazon Linux": "",
		"SUSE Linux Enterprise Server 15": "sles15", "Container-Optimized OS from Google": "",
		"Red Hat Enterprise Linux CoreOS 410.84.202203290245-0 (Ootpa)": "rhcos4.10",
	} {
		require.Equal(t, tag, prettyTag(pretty), pretty)
	}
}
