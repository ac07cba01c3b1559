package fleet

import "strings"

const (
	rhcos = "rhcos"
	rhel  = "rhel"
)

// Tag returns the operating system's tag, with which the tags of driver images end, of
// what NFD has from os-release: ID, VERSION_ID, RHEL_VERSION and OSTREE_VERSION. It
// returns "" where they make none.
//
// It is ID and VERSION_ID, apart from these:
//   - Rocky Linux, and RHEL from 10 on, have one image for a major release;
//   - RHCOS is rhcos and the version of OpenShift up to 4.18 (from 4.19 on its os-release
//     says rhel and 9.6, and so does the tag). Where its VERSION_ID is its own build
//     number ("412.86.202303241612-0"), or none, the version is read from that.
func Tag(id, version, rhelVersion, ostree string) string {
	id = strings.ToLower(id)
	switch {
	case id == rhcos:
		if v := openShift(version); v != "" {
			version = v
		} else {
			version = openShift(ostree)
		}
	case id == rhel && version == "":
		version = rhelVersion
	}
	if id == "rocky" || id == rhel && parseRelease(major(version)+".0").atLeast(10, 0) {
		version = major(version)
	}
	if id == "" || version == "" || !validTag(id+version) {
		return ""
	}
	return id + version
}

// openShift reads the version of OpenShift out of RHCOS' own: "4.12" of "4.12", of
// "4.12.3" and of "412.86.202303241612-0". "" where there is none.
func openShift(version string) string {
	first, rest, ok := strings.Cut(version, ".")
	if !ok || !strings.HasPrefix(first, "4") {
		return ""
	}
	minor := first[1:]
	if minor == "" {
		minor = major(rest)
	}
	if minor == "" || strings.Trim(minor, "0123456789") != "" {
		return ""
	}
	return "4." + minor
}

func major(version string) string {
	first, _, _ := strings.Cut(version, ".")
	return first
}

// validTag says whether s can be part of an image's tag and a label's value.
func validTag(s string) bool {
	for _, r := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-", r) {
			return false
		}
	}
	return len(s) <= 40
}

// systems are the names by which os-release's PRETTY_NAME begins, the more special first,
// with the ID beside.
var systems = []struct{ name, id string }{
	{"Red Hat Enterprise Linux CoreOS ", rhcos},
	{"Red Hat Enterprise Linux ", rhel},
	{"Ubuntu ", "ubuntu"},
	{"SUSE Linux Enterprise Server ", "sles"},
	{"SUSE Linux Enterprise Micro ", "sle-micro"},
	{"SUSE Linux Micro ", "sl-micro"},
	{"Debian GNU/Linux ", "debian"},
	{"Amazon Linux ", "amzn"},
	{"Rocky Linux ", "rocky"},
	{"AlmaLinux ", "almalinux"},
	{"Oracle Linux Server ", "ol"},
	{"CentOS Stream ", "centos"},
	{"Microsoft Azure Linux ", "azurelinux"},
	{"Flatcar Container Linux by Kinvolk ", "flatcar"},
}

// prettyTag returns the tag of what the kubelet reports of the operating system:
// PRETTY_NAME of os-release. "" where it is none of those known.
func prettyTag(pretty string) string {
	for _, s := range systems {
		rest, ok := strings.CutPrefix(pretty, s.name)
		if !ok {
			continue
		}
		version, rest, _ := strings.Cut(rest, " ")
		return tagOf(s.id, version, rest)
	}
	return ""
}

// tagOf makes VERSION_ID of the version that a PRETTY_NAME shows.
func tagOf(id, version, rest string) string {
	if version == "" || version[0] < '0' || version[0] > '9' {
		return ""
	}
	switch id {
	case rhcos:
		if openShift(version) == "" {
			return Tag(rhel, firstTwo(version), "", "")
		}
	case "ubuntu": // 22.04.4 LTS
		version = firstTwo(version)
	case "amzn": // 2023.4.20240528
		version = major(version)
	case "sles": // 15 SP5
		if pack, ok := strings.CutPrefix(rest, "SP"); ok {
			version += "." + pack
		}
	}
	return Tag(id, version, "", "")
}

// firstTwo returns "22.04" of "22.04.4".
func firstTwo(version string) string {
	first, rest, ok := strings.Cut(version, ".")
	if !ok {
		return first
	}
	return first + "." + major(rest)
}
