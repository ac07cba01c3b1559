package fleet

import "strings"

const (
	rhcos = "rhcos"
	rhel  = "rhel"
)

// Tag returns the operating system's tag, the suffix of driver images' tags, for the values of
// os-release that NFD publishes: ID, VERSION_ID, RHEL_VERSION and OSTREE_VERSION. It returns ""
// if they make none.
//
// The tag is ID and VERSION_ID, with these exceptions:
//   - Rocky Linux, and RHEL from 10 on, have one image for a major release.
//   - RHCOS has rhcos and the version of OpenShift up to 4.18. From 4.19 on its os-release
//     says rhel and 9.6, and so does the tag. If its VERSION_ID is its own build number
//     ("412.86.202303241612-0") or missing, the version is derived from the build number.
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

// openShift returns the version of OpenShift from RHCOS' own: "4.12" for "4.12", "4.12.3" and
// "412.86.202303241612-0", or "".
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

// validTag reports whether s can be part of an image's tag and of a label's value. Both may have
// capitals, as in kylinV10.
func validTag(s string) bool {
	for _, r := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", r) {
			return false
		}
	}
	return len(s) <= 40
}

// systems maps prefixes of os-release's PRETTY_NAME to IDs, with more specific prefixes first.
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

// prettyTag returns the tag for the PRETTY_NAME of os-release, which the kubelet reports, or ""
// for an unknown system.
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

// tagOf derives VERSION_ID from the version in a PRETTY_NAME and returns the tag.
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
